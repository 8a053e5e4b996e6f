"""Datasets, spread over the replicas: rebatching, sharding, splitting, prefetching and positions."""
