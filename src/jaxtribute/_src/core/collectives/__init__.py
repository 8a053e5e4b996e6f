"""Reductions and gathers over replicas: inside one replica's program, and over whole distributed values."""
