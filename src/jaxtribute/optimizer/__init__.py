"""Optax transformations on variables, aggregated over the replicas."""

from jaxtribute.optimizer.optimizer import Optimizer as Optimizer
