"""A spare process of `jaxtribute launch --elastic --spares`: it waits here for the place of an island that dies."""

from __future__ import annotations

import json
import os
import sys

import jax
import jax.numpy as jnp

from jaxtribute.config import prepare_cpu_backend, record_run

_SPARE = "JAXTRIBUTE_SPARE"


def await_place() -> None:
    """Waits, in a spare process, until the launcher says which island it is; ends the process if none is to be."""
    text = os.environ.pop(_SPARE, "")
    if not text:
        return
    prepare_cpu_backend()
    # What takes long, and is the same for all: the devices, and the first program.
    jax.block_until_ready(jax.jit(jnp.add)(jnp.zeros(1), jnp.ones(1)))
    with os.fdopen(int(text), "rb") as pipe:
        told = pipe.read()
    if not told:
        sys.exit(0)
    os.environ.update(json.loads(told))
    if run := os.environ.pop("JAXTRIBUTE_RUN", ""):
        record_run(run)
