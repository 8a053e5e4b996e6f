"""Sums of large arrays that travel between replicas in a smaller type."""
