"""A checkpoint holds the whole state, is of one moment, and fits every strategy."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint.experimental import v1

import jaxtribute as jd
from checkpoint_programs import advance, assert_same, build
from jaxtribute._src.core.checkpoint import arrays, description
from jaxtribute._src.core.values.stored import lent
from jaxtribute.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointError,
    CheckpointMismatchError,
    ContextError,
)

STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "none": jd.get_strategy,
    "one device": lambda: jd.OneDeviceStrategy("cpu:1"),
    "mirrored 2": lambda: jd.MirroredStrategy(["cpu:0", "cpu:1"]),
    "mirrored 4": lambda: jd.MirroredStrategy([f"cpu:{i}" for i in range(4)]),
    "central": lambda: jd.CentralStorageStrategy(["cpu:1", "cpu:2"], parameter_device="cpu:0"),
    "sharded 3": lambda: jd.FullyShardedStrategy([f"cpu:{i}" for i in range(3)], min_bytes=1),
}


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("first", STRATEGIES)
def test_a_checkpoint_of_one_strategy_restores_under_every_other(first: str, tmp_path: Path) -> None:
    program = build(STRATEGIES[first]())
    advance(program)
    path = program.checkpoint.save(tmp_path / "ckpt", block=True)
    assert path == str(tmp_path / "ckpt-1")
    rest = program.rest()
    assert len(rest) == 12
    for second in STRATEGIES:
        other = build(STRATEGIES[second]())
        placed = [(variable.stored.sharding, variable.stored.committed) for variable in other.model.values()]
        other.checkpoint.restore(path).assert_consumed()
        assert_same(program.state(), other.state())
        assert other.rest() == rest
        assert other.checkpoint.save_counter == 1
        assert placed == [(variable.stored.sharding, variable.stored.committed) for variable in other.model.values()]


def test_another_object_restores_what_is_still_being_saved(tmp_path: Path) -> None:
    saved, found = jd.Variable(3.0), jd.Variable(0.0)
    path = jd.Checkpoint(v=saved).save(tmp_path / "at once")
    assert jd.Checkpoint(v=found).restore(path).assert_consumed()
    assert float(found) == 3


def test_local_values_of_the_replicas_come_back_on_as_many_replicas(tmp_path: Path) -> None:
    def rows(strategy: jd.Strategy) -> jd.Variable:
        with strategy.scope():
            return jd.Variable(0.0, synchronization=jd.VariableSynchronization.ON_READ)

    two = STRATEGIES["mirrored 2"]()
    variable = rows(two)

    def write() -> None:
        context = jd.get_replica_context()
        assert context is not None
        variable.assign(context.replica_id_in_sync_group.astype(jnp.float32) + 1)

    two.run(write)
    jd.Checkpoint(v=variable).write(tmp_path / "rows", block=True)
    again, more = rows(STRATEGIES["mirrored 2"]()), rows(STRATEGIES["mirrored 4"]())
    jd.Checkpoint(v=again).read(tmp_path / "rows")
    assert [float(value) for value in again.values] == [1.0, 2.0]
    jd.Checkpoint(v=more).read(tmp_path / "rows")  # without an aggregation the first stands for all
    assert [float(value) for value in more.values] == [1.0] * 4


def test_plain_orbax_reads_it(tmp_path: Path) -> None:
    program = build(STRATEGIES["mirrored 4"]())
    advance(program)
    path = Path(program.checkpoint.save(tmp_path / "ckpt", block=True))
    with ocp.StandardCheckpointer() as checkpointer:
        found = checkpointer.restore(path / "state")
    kernel = np.asarray(program.model["kernel"].read_value())
    np.testing.assert_array_equal(found["model.kernel"], kernel)
    np.testing.assert_array_equal(v1.load(str(path))["model.kernel"], kernel)
    assert found["step"] == 5
    described = json.loads((path / "jaxtribute.json").read_text())["values"]
    flat = described["optimizer.dense.kernel.mu"]
    assert (flat["shape"], flat["form"]) == ([5, 3], "flat")
    mu = next(slot for slot in program.optimizer.variables if slot.name == "dense/kernel/mu:0")
    value = found["optimizer.dense.kernel.mu"][:15].reshape(5, 3)
    np.testing.assert_array_equal(value, np.asarray(mu.read_value()))
    rows = found["metrics.SUM"]
    assert rows.shape == (4, 2)
    assert described["metrics.SUM"] == {
        "shape": [2],
        "dtype": "float32",
        "form": "rows",
        "rows": 4,
        "aggregation": "SUM",
    }
    assert not [file for file in path.rglob("*") if file.suffix in (".pkl", ".pickle")]


def test_all_that_differs_is_listed_and_nothing_is_changed(tmp_path: Path) -> None:
    program = build(STRATEGIES["one device"]())
    advance(program)
    path = program.checkpoint.save(tmp_path / "ckpt", block=True)
    with jd.OneDeviceStrategy("cpu:0").scope():
        kernel = jd.Variable(np.ones((5, 4), np.float32))
        other = jd.Variable(np.ones(3, np.int32))
    count = jd.Variable(1)
    checkpoint = jd.Checkpoint(
        model={"kernel": kernel, "bias": other, "new": jd.Variable(True), "count": count}, data=jd.Variable(0)
    )
    with pytest.raises(CheckpointMismatchError) as caught:
        checkpoint.restore(path)
    text = str(caught.value)
    for line in (
        "model.kernel: float32[5, 3] in the checkpoint, float32[5, 4] here",
        "model.bias: float16[7] in the checkpoint, int32[3] here",
        "data: an iterator's position in the checkpoint, int32[] here",
        "optimizer.dense.kernel.nu: float32[5, 3]",
        "key: random key (threefry2x32) of data uint32[2]",
        "HINT",
    ):
        assert line in text
    assert int(count) == 1
    with pytest.raises(CheckpointMismatchError, match=r"model\.kernel"):
        checkpoint.restore(path, strict=False)


def test_a_part_of_a_checkpoint(tmp_path: Path) -> None:
    program = build(STRATEGIES["one device"]())
    advance(program)
    path = program.checkpoint.save(tmp_path / "ckpt", block=True)
    count, own = jd.Variable(0), jd.Variable(2.0)
    checkpoint = jd.Checkpoint(model={"count": count, "own": own})
    status = checkpoint.restore(path, strict=False).expect_partial()
    assert (int(count), float(own)) == (11, 2.0)
    assert status.differences.missing == ("model.own: float32[]",)
    assert "model.own" in repr(status)
    with pytest.raises(CheckpointMismatchError, match=r"model\.own"):
        status.assert_existing_objects_matched()
    with pytest.raises(CheckpointMismatchError, match="optimizer"):
        status.assert_consumed()
    checkpoint.model = {"count": count}
    checkpoint.read(path, strict=False).assert_existing_objects_matched()


def test_a_checkpoint_is_of_the_moment_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = STRATEGIES["mirrored 2"]()
    with strategy.scope():
        variables = [jd.Variable(np.full(4, float(i)), dtype=jnp.float32) for i in range(3)]
    state = {"functional": jnp.arange(3.0)}

    @jd.function
    def step() -> None:
        for variable in variables:
            variable.assign_add(jnp.full(4, 10.0))

    step()
    go, write = threading.Event(), arrays.write

    def late(*args: Any) -> None:
        assert go.wait(60)
        write(*args)

    monkeypatch.setattr(arrays, "write", late)
    checkpoint = jd.Checkpoint(variables=variables, state=state)
    path = checkpoint.save(tmp_path / "ckpt")
    assert checkpoint.saving
    step()
    state["functional"].delete()
    variables[2].assign(np.zeros(4, np.float32))
    assert not Path(path).exists()
    go.set()
    checkpoint.wait()
    assert not checkpoint.saving
    assert [float(variable.read_value()[0]) for variable in variables] == [20.0, 21.0, 0.0]
    checkpoint.state = {"functional": jnp.zeros(3)}
    checkpoint.restore(path)
    assert [float(variable.read_value()[0]) for variable in variables] == [10.0, 11.0, 12.0]
    np.testing.assert_array_equal(checkpoint.state["functional"], [0, 1, 2])


def test_after_a_save_a_step_copies_nothing(tmp_path: Path) -> None:
    variable = jd.Variable(np.ones(3, np.float32))
    jd.Checkpoint(v=variable).save(tmp_path / "ckpt", block=True)
    assert id(variable) not in lent


def test_an_error_in_the_background_comes_out_at_the_next_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    variable = jd.Variable(1.0)
    checkpoint = jd.Checkpoint(v=variable)
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.CRITICAL):
        checkpoint.save(tmp_path / "file" / "ckpt")
        with pytest.raises(CheckpointError, match=r"file/ckpt-1 was not saved: NotADirectoryError.*HINT"):
            checkpoint.save(tmp_path / "ckpt")
        path = checkpoint.save(tmp_path / "ckpt", block=True)  # it was said once
    assert path.endswith("ckpt-2")
    assert id(variable) not in lent


def test_a_checkpoint_replaces_one_of_the_same_name(tmp_path: Path) -> None:
    variable = jd.Variable(1.0)
    checkpoint = jd.Checkpoint(v=variable)
    checkpoint.write(tmp_path / "one", block=True)
    variable.assign(2.0)
    (tmp_path / "one.orbax-checkpoint-tmp" / "left").mkdir(parents=True)
    checkpoint.write(tmp_path / "one", block=True)
    variable.assign(3.0)
    checkpoint.read(tmp_path / "one")
    assert float(variable) == 2.0
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_what_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = jd.Checkpoint(v=jd.Variable(1.0))
    with pytest.raises(CheckpointError, match=r"is no checkpoint .* HINT"):
        checkpoint.restore(tmp_path)
    assert not checkpoint.restore(None).differences
    with monkeypatch.context() as later:
        later.setattr(description, "_FORMAT", 99)
        path = checkpoint.save(tmp_path / "ckpt", block=True)
    with pytest.raises(CheckpointError, match=r"in format 99, .* HINT"):
        checkpoint.restore(path)
    path = checkpoint.save(tmp_path / "ckpt", block=True)

    def torn(*args: Any) -> None:
        raise ValueError("DATA_LOSS")

    monkeypatch.setattr(arrays, "read", torn)
    with pytest.raises(CheckpointError, match=r"cannot be read: ValueError: DATA_LOSS.*nothing has changed.*HINT"):
        checkpoint.restore(path)


def test_names_and_places_where_a_checkpoint_cannot_be(tmp_path: Path) -> None:
    for name in ("save", "save_counter", "_own"):
        with pytest.raises(ArgumentError, match=name):
            jd.Checkpoint(**{name: jd.Variable(1.0)})
    with pytest.raises(ArgumentTypeError, match="function holds nothing"):
        jd.Checkpoint(f=test_what_is_no_checkpoint).save(tmp_path / "f")
    checkpoint = jd.Checkpoint(v=jd.Variable(1.0))
    with pytest.raises(AttributeError, match="no 'w'"):
        _ = checkpoint.w
    assert repr(checkpoint) == "<jd.Checkpoint of v; saved 0 times>"
    with pytest.raises(ContextError, match=r"Checkpoint\.save .* HINT"):
        jd.function(lambda: checkpoint.save(tmp_path / "in a function"))()
    with pytest.raises(ContextError, match=r"Checkpoint\.restore"):
        jd.function(lambda: checkpoint.restore(tmp_path / "in a function"))()


class Position:
    """An iterator whose position JSON cannot hold."""

    def get_state(self) -> Any:
        return b"position"

    def set_state(self, state: Any) -> None:
        raise NotImplementedError


def test_positions_that_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="iterator named 'state'"):
        jd.Checkpoint(state=Position()).save(tmp_path / "ckpt")
    with pytest.raises(CheckpointError, match=r"position of data is a bytes, .* HINT"):
        jd.Checkpoint(data=Position()).save(tmp_path / "ckpt")


def test_training_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    def make() -> tuple[jd.Checkpoint, Callable[[], float]]:
        strategy = STRATEGIES["mirrored 2"]()
        with strategy.scope():
            weight = jd.Variable(np.linspace(0, 1, 6, dtype=np.float32).reshape(3, 2), name="weight")
        optimizer = jd.Optimizer(optax.adam(0.1), [weight], shard_update=True)

        @jd.function
        def step() -> Any:
            def replica() -> Any:
                loss, grads = jd.value_and_grad(lambda: jnp.sum(weight.read_value() ** 2), [weight])()
                optimizer.apply_gradients(grads, "MEAN")
                return loss

            return strategy.reduce("MEAN", strategy.run(replica), axis=None)

        return jd.Checkpoint(weight=weight, optimizer=optimizer), lambda: float(step())

    checkpoint, step = make()
    for _ in range(3):
        step()
    path = checkpoint.save(tmp_path / "ckpt")
    losses = [step() for _ in range(3)]
    checkpoint.wait()
    again, step = make()
    again.restore(path)
    assert [step() for _ in range(3)] == losses
    assert jax.process_count() == 1
