"""Helpers of a training step: losses over the replicas, mixed precision, checks that the replicas agree."""
