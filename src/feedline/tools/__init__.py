"""Programs built upon the loader: the command line, benchmarks, tuning, reports, the lab, packing."""
