"""Preemption: what a job does when a machine of it is about to be taken away."""
