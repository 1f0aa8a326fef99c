"""What Python and the operating system need from us: cores, core dumps, OpenMP, weak references."""
