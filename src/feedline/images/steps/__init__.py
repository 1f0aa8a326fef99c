"""Changes to the pixels of an image between its crop and its normalisation."""
