"""A checkpoint holds what was there at the call of `save`, whatever the program does until it is written."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute._src.core.checkpoint import arrays
from jaxtribute._src.core.values import stored
from jaxtribute._src.core.values.stored import Lease

SIZES = (3, 500, 40_000, 70_000)


class Program:
    """Variables of several sizes, and what the user may do with them; `expected` follows in NumPy."""

    def __init__(self) -> None:
        strategy = jd.MirroredStrategy(["cpu:0", "cpu:1"])
        with strategy.scope():
            self.variables = [jd.Variable(np.arange(size, dtype=np.float32), name=f"v{size}") for size in SIZES]
        self.expected = [np.arange(size, dtype=np.float32) for size in SIZES]
        self.held: list[tuple[jax.Array, np.ndarray[Any, Any]]] = []

        @jd.function
        def whole() -> None:
            for variable in self.variables:
                variable.assign_add(jnp.ones_like(variable.read_value()))

        @jd.function
        def half() -> None:
            for variable in self.variables[::2]:
                variable.assign(2 * variable.read_value())

        self._steps = {"step": whole, "half a step": half}

    def do(self, what: str) -> None:
        if what == "assign":
            self.variables[1].assign(-self.expected[1])
            self.expected[1] = -self.expected[1]
        elif what == "hold":
            self.held.append((self.variables[2].values[0], self.expected[2]))
        else:
            self._steps[what]()
            for place in range(len(SIZES)):
                if what == "step":
                    self.expected[place] = self.expected[place] + 1
                elif place % 2 == 0:
                    self.expected[place] = 2 * self.expected[place]


@pytest.fixture(scope="module")
def program() -> Program:
    return Program()


def await_turn(turn: threading.Semaphore, checkpoint: jd.Checkpoint) -> None:
    """Waits until the save has come to its next array."""
    deadline = time.monotonic() + 60
    while not turn.acquire(timeout=0.2):
        if not checkpoint.saving:
            checkpoint.wait()  # raises what went wrong
        assert time.monotonic() < deadline


ACTIONS = st.lists(st.sampled_from(["step", "half a step", "assign", "hold"]), max_size=4)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12)
@given(before=ACTIONS, meanwhile=st.lists(ACTIONS, min_size=2, max_size=5))
def test_a_checkpoint_is_of_the_moment_of_the_call(
    program: Program, before: list[str], meanwhile: list[list[str]]
) -> None:
    """The save comes to each array only when the program has done what it does until then."""
    turns = [threading.Semaphore(0), threading.Semaphore(0)]
    take, batches, main = Lease.take, arrays.batches, threading.current_thread()

    def in_turn(lease: Lease) -> jax.Array:
        array = take(lease)
        if threading.current_thread() is not main:
            turns[0].release()
            assert turns[1].acquire(timeout=60)
        return array

    for what in before:
        program.do(what)
    expected = list(program.expected)
    checkpoint = jd.Checkpoint(v=program.variables)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lease, "take", in_turn)
        patch.setattr(stored, "_PATIENCE_S", 0.0)
        patch.setattr(arrays, "batches", lambda sizes: batches(sizes, 1))
        path = checkpoint.save(f"{folder}/ckpt")
        for number in range(len(SIZES)):
            await_turn(turns[0], checkpoint)
            for what in meanwhile[number] if number < len(meanwhile) else ():
                program.do(what)
            turns[1].release()
        checkpoint.wait()
        with ocp.StandardCheckpointer() as reader:
            saved: Any = reader.restore(Path(path) / "state")
        for place, want in enumerate(expected):
            np.testing.assert_array_equal(saved[f"v.{place}"], want)
    for variable, want in zip(program.variables, program.expected, strict=True):
        np.testing.assert_array_equal(variable.read_value(), want)
    for array, want in program.held:
        np.testing.assert_array_equal(array, want)
    program.held.clear()
