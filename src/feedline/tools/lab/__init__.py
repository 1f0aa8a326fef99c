"""The lab: a local page where one sees a loader work."""
