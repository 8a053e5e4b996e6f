"""Optax transformations on variables, aggregated over the replicas."""
