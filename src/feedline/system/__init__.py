"""What Python and the operating system need from us: cores, limits, core dumps, OpenMP, weak references."""
