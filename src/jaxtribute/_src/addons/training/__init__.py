"""Helpers of a training step: mixed precision, checks that the replicas agree."""
