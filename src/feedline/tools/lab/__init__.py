"""The lab: a local page that shows a loader at work."""
