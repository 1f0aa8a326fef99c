"""What is wrong with a dataset, by what was measured of it. Nothing is measured here."""
