"""Processes that form a cluster, faults, invariance, leaks."""
