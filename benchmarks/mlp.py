"""The MLP of `problems`, in JAX: for the benchmarks that train one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.problems import LEARNING_RATE, MOMENTUM
from benchmarks.problems import mlp as problem

__all__ = ["LEARNING_RATE", "MOMENTUM", "loss_sum", "problem"]


def loss_sum(params: Sequence[Any], images: Any, labels: Any) -> jax.Array:
    """Summed cross-entropy."""
    hidden = images
    for weight, bias in zip(params[:-2:2], params[1:-2:2], strict=True):
        hidden = jax.nn.relu(hidden @ weight + bias)
    logits = jax.nn.log_softmax(hidden @ params[-2] + params[-1])
    return -jnp.take_along_axis(logits, labels[:, None], 1).sum()
