"""Workers that are not alike: eager values that are each worker's own, and programs that would train apart."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import differing_workers as programs
from arrangements import WORKERS
from jaxtribute._src.addons.testing.shared import SharedRunners

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("workers", "devices"), WORKERS)
def test_eager_values_are_those_of_all_workers(multi_process: SharedRunners, workers: int, devices: int) -> None:
    replicas = workers * devices
    rows = np.arange(1, 2 * replicas + 1, dtype=np.float32).reshape(replicas, 2)
    ranks = np.repeat(np.arange(workers), devices)
    wanted: dict[str, Any] = {
        "through": rows.sum(),
        "mean": rows.mean(),
        "over replicas": rows.sum(0).tolist(),
        "to": rows.mean(0).tolist(),
        "gathered": rows.ravel().tolist(),
        "kinds": ["PerReplica", "Mirrored", "PerReplica"],
        "own arrays": [ranks.sum()] * 2,
        "own argument": [2 * ranks.sum()] * 2,
        "own array on a device": [ranks.sum()] * 2,
        "own numbers": (1 + ranks).sum(),
        "own numbers merged": (1 + ranks).sum(),
        "own mean": ranks.mean(),
        "own mean to": ranks.mean(),
        "same numbers merged": 3,
        "trained": (-rows.sum(0)).tolist(),
        "of the first": [[1.0, 2.0], [replicas] * 2],
    }
    for found in multi_process(workers, devices).run(programs.eager_values):
        assert found == wanted


@pytest.mark.parametrize(("workers", "devices"), WORKERS)
def test_each_workers_own_array_is_gathered_once(multi_process: SharedRunners, workers: int, devices: int) -> None:
    ranks = range(workers)
    rows = [[float(rank)] * 2 for rank in ranks for _ in range(1 + rank)]
    equal = [number for rank in ranks for number in (float(rank), 1.0)]
    alike = [0.0, 1.0] * workers
    wanted: dict[str, Any] = {
        "equal": equal,
        "jax": equal,
        "rows": rows,
        "columns": [[rank for rank in ranks for _ in range(1 + rank)]] * 2,
        "none": [[1.0, 1.0]] * sum(ranks),
        "nest": {"a": [rows], "b": ([1.0] * workers * devices,)},
        "merged": rows,
        "total": [1.0] * 2 * workers,
        "compiled": alike,
        "compiled total": [1.0] * 2 * workers,
        "compiled constant": [0, 1] * workers,
        "compiled merged": alike,
    }
    first, *others = multi_process(workers, devices).run(programs.gathered_plainly)
    assert first["found"] == wanted
    for name, text in first["errors"].items():
        assert "HINT" in text, (name, text)
    # All the same on every worker: errors too, so that none waits for another.
    assert all(other["found"] == wanted for other in others)
    assert all(list(map(bool, other["errors"].values())) == [True] * 6 for other in others)


def test_programs_that_differ_between_workers_are_refused(multi_process: SharedRunners) -> None:
    found = multi_process(2, 1).run(programs.fixed_differently)
    assert found[0] == found[1]
    one = found[0]
    assert one.pop("alike") == one.pop("argument alike") == one.pop("printed") == ""
    assert one.pop("value") == "[1.0, 1.0, 1.0]", "a step that is refused changes nothing"
    for name, text in one.items():
        assert text.startswith("ClusterError"), (name, text)
        assert "worker 0: " in text, (name, text)
        assert "worker 1: " in text, (name, text)
        assert "HINT" in text, (name, text)
    assert "0.10000000149011612" in one["rate"]
    assert "0.20000000298023224" in one["rate"]
    assert one["rate"].count("differing_workers.py:") == 2
    assert "\n  worker 0: cos, at " in one["operation"]
    assert "\n  worker 1: sin, at " in one["operation"]
    assert "\n  worker 1: abs, at " in one["operations"]
    assert "HINT: run the same code on all workers" in one["operations"]
    assert "y=3 of integer_pow" in one["exponent"]
    assert "array 0 of the arguments" in one["argument"]
    assert "\n  worker 0: float32[" in one["dtype"]
    assert "\n  worker 1: int32[" in one["dtype"]


@pytest.mark.parametrize(("workers", "devices"), WORKERS)
def test_placed_values_are_those_of_the_first_worker(multi_process: SharedRunners, workers: int, devices: int) -> None:
    random = np.asarray(jax.random.normal(jax.random.key(7), (2,)))
    for found in multi_process(workers, devices).run(programs.placed_differently):
        assert "ShapeError" in found.pop("shapes")
        assert found.pop("variable") == [1.0, 1.0]
        np.testing.assert_array_equal(found.pop("random"), [random] * devices)
        assert found == {"float32": [[1.0, 1.0]] * devices, "bfloat16": [[1.0, 1.0]] * devices, "number": [1] * devices}
