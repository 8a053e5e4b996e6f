"""`MultiWorkerMirroredStrategy`: two processes of two devices each do what four devices of one process do."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
import worker_programs as programs
from jaxtribute._src.addons.testing.shared import SharedRunners
from transformation_product import EVEN, UNEVEN, is_right, on_worker


def on_workers(multi_process: SharedRunners, program: Any, *args: Any) -> list[Any]:
    return multi_process(workers=2, devices=2).run(program, args)


@pytest.mark.slow
def test_who_is_who(multi_process: SharedRunners) -> None:
    for rank, facts in enumerate(on_workers(multi_process, programs.facts)):
        assert facts == {
            "replicas": 4,
            "local": 2,
            "task": ("worker", rank),
            "devices": tuple(f"/job:worker/replica:0/task:{rank}/device:CPU:{i}" for i in range(2)),
            "pipelines": (2, rank),
            "main": rank == 0,
        }


@pytest.mark.slow
def test_variables_start_with_the_first_workers_value(multi_process: SharedRunners) -> None:
    for values in on_workers(multi_process, programs.first_values):
        assert values["scalar"] == 5.0
        np.testing.assert_array_equal(values["matrix"], np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32))
        assert values["integers"].tolist() == [0, 1, 2, 3]
        assert values["flags"].tolist() == [True, False]
        assert values["on_read"] == 0.0
        assert values["eager"] == values["compiled"] == 7.0


@pytest.mark.slow
def test_variables_of_different_shapes_are_an_error_on_all_workers(multi_process: SharedRunners) -> None:
    for text in on_workers(multi_process, programs.different_shapes):
        assert "'odd'" in text
        assert "float32[2]" in text
        assert "float32[3]" in text
        assert "HINT" in text


@pytest.mark.slow
def test_large_gradients_are_gathered_by_their_factors_and_stay_the_same_bits(multi_process: SharedRunners) -> None:
    one, other = on_workers(multi_process, programs.wide_layers, True)
    # Both factors of both layers: the input, what is hidden, and the cotangents of what comes out, in one message.
    assert one["gathers"] == other["gathers"] == 1
    assert one["bits"] == other["bits"]
    plain, _ = on_workers(multi_process, programs.wide_layers, False)
    assert plain["gathers"] == 0
    np.testing.assert_allclose(one["losses"], plain["losses"], rtol=1e-5)
    for found, wanted in zip(one["rows"], plain["rows"], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_updates_are_not_in_slices_between_processes_unless_asked_for(multi_process: SharedRunners) -> None:
    assert on_workers(multi_process, programs.sliced_slots, "auto") == [False, False]
    assert on_workers(multi_process, programs.sliced_slots, True) == [True, True]


OF_WORKERS = {
    (2, 1): ["line search"],
    (2, 2): ["weight decay but for biases"],
}
"""Transformations by workers and devices of each; all: `python -m transformation_product --workers 2 1`."""


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "kind"), list(zip(OF_WORKERS, ("dict", "classes"), strict=True)))
def test_transformations_do_what_plain_optax_does(
    multi_process: SharedRunners, shape: tuple[int, int], kind: str
) -> None:
    workers, each = shape
    ranks = multi_process(workers=workers, devices=each).run(
        on_worker,
        ([kind], OF_WORKERS[shape]),
        {"rows": [UNEVEN if each > 1 else EVEN], "steps": 3},
    )
    for outcomes in ranks:
        assert len(outcomes) == 4 * len(OF_WORKERS[shape])
        wrong = [one for one in outcomes if not is_right(one, workers)]
        assert not wrong, wrong


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_collectives(multi_process: SharedRunners, compiled: bool) -> None:
    for rank, found in enumerate(on_workers(multi_process, programs.collectives, compiled)):
        np.testing.assert_array_equal(found["sum"], [6, 6])
        np.testing.assert_array_equal(found["merged"], [6, 6])
        np.testing.assert_array_equal(found["mean"]["a"], [1.5, 1.5])
        np.testing.assert_array_equal(found["mean"]["b"], [2.5, 2.5])
        np.testing.assert_array_equal(found["gather"], np.repeat(np.arange(4), 2))
        assert found["ids"] == [2 * rank, 2 * rank + 1]
        np.testing.assert_array_equal(found["reduced"], [6, 6])
        assert found["along"] == 1.5
        np.testing.assert_array_equal(found["gathered"], np.repeat(np.arange(4), 2))


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_ragged_values(multi_process: SharedRunners, compiled: bool) -> None:
    rows = np.repeat(np.arange(4), np.arange(4)).astype(np.float32)
    for rank, found in enumerate(on_workers(multi_process, programs.ragged, compiled)):
        np.testing.assert_array_equal(found["gathered"], np.stack([2 * rows, 2 * rows], axis=1))
        assert found["sum"] == 2 * rows.sum()
        assert found["mean"] == pytest.approx(rows.mean())
        assert found["local"] == [(2 * rank, 2), (2 * rank + 1, 2)]


@pytest.mark.slow
def test_writes_in_every_context(multi_process: SharedRunners) -> None:
    for found in on_workers(multi_process, programs.writes):
        np.testing.assert_array_equal(found["eager"][0], [6, 4])
        assert found["eager"][1:] == [7.0, 10.0]
        np.testing.assert_array_equal(found["compiled"][0], [13, 9])
        assert found["compiled"][1:] == [7.0, 20.0]
        assert found["created"] == [3.0, 3.0]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["DATA", "OFF"])
def test_training_as_on_one_machine(multi_process: SharedRunners, policy: str) -> None:
    rows, batch, epochs = 27, 8, 2
    found = on_workers(multi_process, programs.train, rows, batch, epochs, policy)
    for one in found:
        assert one["losses"] == found[0]["losses"]
        np.testing.assert_array_equal(one["w"], found[0]["w"])
    if policy == "DATA":
        with jax.numpy_dtype_promotion("standard"):
            losses, weights = train_by_hand(rows, batch, epochs)
        np.testing.assert_allclose(found[0]["losses"], losses, rtol=1e-5)
        np.testing.assert_allclose(found[0]["w"], weights, rtol=1e-5)
        assert [one["seen"] for one in found] == [rows * epochs] * 2
    else:  # each worker goes through all rows
        assert [one["seen"] for one in found] == [2 * rows * epochs] * 2


def train_by_hand(rows: int, batch: int, epochs: int) -> tuple[list[float], Any]:
    """The same training in plain JAX on one device."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(rows, 3)).astype(np.float32), rng.normal(size=(rows,)).astype(np.float32)
    optimizer = optax.adam(0.1)
    w = jnp.ones(3) * jnp.float32(0.5)
    state = optimizer.init(w)
    losses: list[float] = []
    for start in [*range(0, rows, batch)] * epochs:
        part_x, part_y = jnp.asarray(x[start : start + batch]), jnp.asarray(y[start : start + batch])
        loss, gradient = jax.value_and_grad(lambda w, a, b: jnp.sum((a @ w - b) ** 2) / jnp.float32(batch))(
            w, part_x, part_y
        )
        updates, state = optimizer.update(gradient, state)
        w = jnp.asarray(optax.apply_updates(w, updates))
        losses.append(float(loss))
    return losses, np.asarray(w)


@pytest.mark.slow
def test_workers_that_run_out_first_take_part_until_the_end(multi_process: SharedRunners) -> None:
    first, second = on_workers(multi_process, programs.own_data)
    assert first == second
    # Of worker 0's five rows the last is a remainder, once.
    assert sum(first) == 2 * (sum(range(5)) + sum(range(2))) - 4 + sum(range(5))
    assert sum(first[-2:]) == sum(range(5)), "one of them has no data at all"


@pytest.mark.slow
def test_workers_that_do_different_things_are_told(multi_process: SharedRunners) -> None:
    for text in multi_process(workers=2, devices=2).run(programs.off_course):
        assert "worker 0" in text
        assert "worker 1" in text
        assert "'extra'" in text
        assert "HINT" in text


def test_without_a_cluster_it_is_a_strategy_of_this_process() -> None:
    strategy = jd.MultiWorkerMirroredStrategy(jd.cluster_resolver.TFConfigClusterResolver(environ={}))
    assert strategy.num_replicas_in_sync == 8
    assert strategy.extended.input_context().num_input_pipelines == 1
    value = strategy.run(lambda: programs.replica_context().replica_id_in_sync_group)
    assert int(strategy.reduce("SUM", value, axis=None)) == 28
