"""Everything that touches a GPU."""
