"""Measurements against hand-written JAX and other peers: `python -m benchmarks`."""
