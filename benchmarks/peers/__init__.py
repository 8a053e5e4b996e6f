"""One process each of a library that is measured; see `benchmarks.harness`."""
