"""Functions scheduled on the workers of a cluster, variables on its parameter servers."""
