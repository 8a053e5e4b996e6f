"""A spare process of `jaxtribute launch --elastic --spares`: it waits here for the place of an island that dies."""

from __future__ import annotations

import contextlib
import json
import os
import sys

import jax
import jax.numpy as jnp
import optax

from jaxtribute import Optimizer, Variable, function, value_and_grad
from jaxtribute.config import prepare_cpu_backend, record_run

_SPARE, _RUN = "JAXTRIBUTE_SPARE", "JAXTRIBUTE_RUN"


def await_place() -> None:
    """Waits, in a spare process, until the launcher says which island it is; ends the process if none is to be."""
    text = os.environ.pop(_SPARE, "")
    if not text:
        return
    prepare_cpu_backend()
    with contextlib.suppress(Exception):  # it only saves time: what is wrong, the program itself will say
        _rehearse()
    with os.fdopen(int(text), "rb") as pipe:
        told = pipe.read()
    if not told:
        sys.exit(0)
    os.environ.update(json.loads(told))
    if folder := os.environ.pop(_RUN, ""):
        record_run(folder)


def _rehearse() -> None:
    """Trains a little, alone: what takes long at first, and is the same for all, is over when there is a place."""
    from jaxtribute._src.addons.elastic.strategy import ElasticStrategy  # it needs this module

    with contextlib.closing(ElasticStrategy()) as strategy:
        with strategy.scope():
            w = Variable(jnp.zeros(2), name="w")
            optimizer = Optimizer(optax.adam(0.1), [w])

        def replica(x: jax.Array) -> jax.Array:
            value, gradients = value_and_grad(lambda: jnp.sum((x * w) ** 2), [w])()
            optimizer.apply_gradients(zip(gradients, [w], strict=True))
            return value

        step = function(lambda x: strategy.reduce("SUM", strategy.run(replica, (x,)), axis=None))
        for x in strategy.experimental_distribute_dataset([jnp.ones((2, 2))] * 2):
            step(x)
