"""The MLP of `problems`, in JAX: for the benchmarks that train one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import optax

import jaxtribute as jd
from benchmarks.peers.jax_steps import OPS
from benchmarks.problems import LEARNING_RATE, MOMENTUM, mlp_loss
from benchmarks.problems import mlp as problem

__all__ = ["LEARNING_RATE", "MOMENTUM", "compiled", "loss_sum", "problem", "training"]


def loss_sum(params: Sequence[Any], images: Any, labels: Any) -> jax.Array:
    """Summed cross-entropy."""
    return mlp_loss(OPS, params, images, labels)


def compiled(
    strategy: jd.Strategy, layers: Sequence[int], batch: int, transform: optax.GradientTransformation, **options: Any
) -> tuple[Any, list[jd.Variable], jd.Optimizer]:
    """A `jd.function` that trains an MLP under a strategy, on images and labels that it distributed.

    Args:
      strategy: trains.
      layers: units of each, the inputs first.
      batch: what summed losses are divided by: examples in the global batch.
      transform: of the gradients.
      options: of `jd.Optimizer`.

    Returns:
      A step, which returns the loss; its variables; their optimizer.
    """
    params, _, _ = problem(layers, batch)
    with strategy.scope():
        variables = [jd.Variable(p) for p in params]
    optimizer = jd.Optimizer(transform, variables, **options)

    def replica_step(images: Any, labels: Any) -> Any:
        def mean_loss() -> Any:
            return loss_sum([v.read_value() for v in variables], images, labels) / batch

        value, grads = jd.value_and_grad(mean_loss, variables)()
        optimizer.apply_gradients(grads)
        return value

    @jd.function
    def train_step(images: Any, labels: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, (images, labels)), axis=None)

    return train_step, variables, optimizer


def training(
    strategy: jd.Strategy, layers: Sequence[int], batch: int, transform: optax.GradientTransformation, **options: Any
) -> tuple[Callable[[], Any], list[jd.Variable]]:
    """The step of `compiled`, always on the same batch; with it all variables and slots."""
    train_step, variables, optimizer = compiled(strategy, layers, batch, transform, **options)
    _, images, labels = problem(layers, batch)
    data = [next(iter(strategy.experimental_distribute_dataset([array]))) for array in (images, labels)]
    return lambda: train_step(*data), [*variables, *optimizer.variables]
