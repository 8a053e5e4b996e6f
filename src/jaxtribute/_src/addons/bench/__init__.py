"""Measures the speed of this cluster for a user; `jaxtribute bench` is its command line."""
