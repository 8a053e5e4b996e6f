"""Preemption: all workers agree on a step, save once, and end so that they are started again."""
