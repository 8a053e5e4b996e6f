"""What the TPU compiler makes of steps: memory, collectives and donation, without a TPU."""

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.ad_checkpoint import checkpoint_name

import jaxtribute as jd
from compiled_programs import PROGRAMS, gpt, operations_of_gpt, planned, train
from jaxtribute._src.addons.compiling.step import DoesNotFitError
from jaxtribute._src.addons.tools.hlo.exchanges import bytes_moved
from jaxtribute.errors import ArgumentError, DeviceError
from table_programs import squares_step

pytestmark = [
    pytest.mark.skipif(find_spec("libtpu") is None, reason="the TPU compiler is missing: pip install libtpu"),
    pytest.mark.slow,
    pytest.mark.optimized,
]
STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "mirrored": jd.MirroredStrategy,
    "fully-sharded": jd.FullyShardedStrategy,
    "tpu": jd.TPUStrategy,
}
TOPOLOGY, CHIPS = "v5e:2x4", 8


@pytest.fixture(autouse=True)
def standard_promotion() -> Any:
    """Optimizers' and users' code as it is usually run."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.quick_cases(1, half=True)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kind", ["mirrored", "fully-sharded"])
@pytest.mark.parametrize(("topology", "chips"), [(TOPOLOGY, CHIPS), ("v5p:4x4x4", 64)])
def test_all_state_is_donated_and_nothing_goes_to_the_host(topology: str, chips: int, kind: str, name: str) -> None:
    found = jd.experimental.compile_for(topology, lambda: train(STRATEGIES[kind](), PROGRAMS[name]))
    assert found.replicas == chips
    assert found.copied == ()
    assert found.donated >= found.state
    assert found.host == 0
    assert found.batch == 64
    assert min(found.flops, found.traffic, found.estimate) > 0


def test_a_scan_of_layers_counts_each_of_them() -> None:
    scanned, unrolled = (
        jd.experimental.compile_for(TOPOLOGY, lambda each=each: train(jd.MirroredStrategy(), lambda: gpt(scanned=each)))
        for each in (True, False)
    )
    assert scanned.open_loops == unrolled.open_loops == 0
    assert scanned.flops == pytest.approx(unrolled.flops, rel=0.01)
    assert scanned.flops == pytest.approx(operations_of_gpt() / CHIPS, rel=0.1)
    # Each turn also copies a layer's weights out of the stack.
    assert scanned.traffic == pytest.approx(unrolled.traffic, rel=0.5)
    moved = [bytes_moved(one.text, CHIPS) for one in (scanned, unrolled)]
    assert moved[0] == pytest.approx(moved[1], rel=0.02)


def test_a_small_models_gradients_are_reduced_in_one_collective() -> None:
    for kind in ("mirrored", "tpu"):
        found = jd.experimental.compile_for(TOPOLOGY, lambda kind=kind: train(STRATEGIES[kind](), PROGRAMS["digits"]))
        assert [one.kind for one in found.collectives] == ["all-reduce"]
        weights = 4 * (64 * 256 + 256 + 256 * 10 + 10)
        assert weights <= found.collectives[0].nbytes <= weights + 4096  # and the loss


def test_a_sharded_model_takes_its_share_of_memory_and_reduce_scatters() -> None:
    mirrored = jd.experimental.compile_for(TOPOLOGY, lambda: train(jd.MirroredStrategy(), PROGRAMS["wide"]))
    sharded = jd.experimental.compile_for(TOPOLOGY, lambda: train(jd.FullyShardedStrategy(), PROGRAMS["wide"]))
    whole = 3 * 4 * (256 * 1024 + 1024 * 1024 + 1024 * 256)  # and Adam's two slots
    assert sharded.state <= 1.1 * whole / CHIPS
    assert mirrored.held.variables == whole // 3
    kinds = {one.kind for one in sharded.collectives}
    assert {"all-gather", "reduce-scatter"} <= kinds
    assert max(one.nbytes for one in sharded.collectives if one.kind == "all-reduce") < 4096  # the loss


@pytest.mark.parametrize("kind", ["mirrored", "fully-sharded"])
def test_gradients_are_scattered_where_rows_are_no_whole_tiles(kind: str) -> None:
    found = jd.experimental.compile_for(TOPOLOGY, lambda: train(STRATEGIES[kind](), PROGRAMS["odd_rows"]))
    assert "reduce-scatter" in {one.kind for one in found.collectives}
    assert max(one.nbytes for one in found.collectives if one.kind == "all-reduce") < 4096  # the loss
    whole = 4 * (1001 * 1024 + 1024 * 1000)
    assert bytes_moved(found.text, CHIPS) <= 1.01 * whole * (2 if kind == "mirrored" else 3) * 7 / 8


def test_one_device_and_workers_of_a_slice() -> None:
    alone = jd.experimental.compile_for("v5e:2x2", lambda: train(jd.OneDeviceStrategy("CPU:0"), PROGRAMS["digits"]))
    assert (alone.replicas, alone.collectives, alone.copied) == (1, (), ())
    workers = jd.experimental.compile_for(
        "v5p:2x2x2", lambda: train(jd.MultiWorkerMirroredStrategy(), PROGRAMS["digits"])
    )
    assert (workers.replicas, workers.topology.hosts) == (8, 2)


def test_thousands_of_chips_get_an_example_each() -> None:
    found = jd.experimental.compile_for("v5p:16x16x16", lambda: train(jd.MirroredStrategy(), PROGRAMS["digits"]))
    assert (found.replicas, found.batch) == (4096, 4096)


def test_what_does_not_fit_is_refused_with_the_compilers_figure() -> None:
    def huge() -> Any:
        table = jd.Variable(lambda: jnp.ones((1 << 20, 4096)))  # 16 GiB, and as much again for each of Adam's slots
        return [table], lambda x: (x @ table.read_value().T).sum(axis=-1), [np.zeros((64, 4096), np.float32)]

    with pytest.raises(DoesNotFitError, match=r"does not fit on v5e:2x4: .* alone take .* HINT: split them: jd.Full"):
        jd.experimental.compile_for(TOPOLOGY, lambda: train(jd.MirroredStrategy(), huge))


def test_what_a_policy_of_ones_own_puts_into_the_hosts_memory() -> None:
    def made(policy: Any) -> Any:
        w = jd.Variable(lambda: jnp.ones((4, 1024, 1024), jnp.bfloat16))

        def layer(hidden: Any, weights: Any) -> tuple[Any, None]:
            return jnp.tanh(checkpoint_name(hidden, "kept") @ weights), None

        def loss(x: Any) -> Any:
            wide = jnp.broadcast_to(x, (len(x), 1024))
            return jax.lax.scan(jax.checkpoint(layer, policy=policy), wide, w.read_value())[0].mean(axis=1)

        return [w], loss, [jnp.ones((1 << 18, 1), jnp.bfloat16)]

    policies = jax.checkpoint_policies
    moving = policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["kept"],
        offload_src="device",
        offload_dst="pinned_host",
    )
    there, here = (
        jd.experimental.compile_for("v5e:2x2", lambda one=one: train(jd.MirroredStrategy(), lambda: made(one)))
        for one in (moving, policies.nothing_saveable)
    )
    kept = 4 * (1 << 16) * 1024 * 2
    assert here.held.scratch - there.held.scratch > 0.7 * kept
    assert here.host == 0 < there.host
    assert there.estimate > 0.9 * 2 * kept / there.topology.chip.host > here.estimate


def test_what_has_no_value_says_so() -> None:
    def evaluates_first() -> None:
        strategy = jd.MirroredStrategy()
        with strategy.scope():
            v = jd.Variable(jnp.ones(3))
        double = jd.function(lambda: strategy.run(lambda: v.read_value() * 2))
        float(double().values[0])  # pyright: ignore[reportAttributeAccessIssue]

    with pytest.raises(DeviceError, match=r"has no values: .* nothing runs"):
        jd.experimental.compile_for(TOPOLOGY, evaluates_first)
    with pytest.raises(DeviceError, match="outside a compiled function"):
        jd.experimental.compile_for(TOPOLOGY, lambda: jd.MirroredStrategy().run(lambda: 1))
    with pytest.raises(ArgumentError, match="CentralStorageStrategy"):
        jd.experimental.compile_for(TOPOLOGY, jd.experimental.CentralStorageStrategy)
    with pytest.raises(ArgumentError, match="ended without a step"):
        jd.experimental.compile_for(TOPOLOGY, jd.MirroredStrategy)
    with pytest.raises(ArgumentError, match="the TPU compiler knows no slice 'v5e:3x5'"):
        jd.experimental.compile_for("v5e:3x5", jd.MirroredStrategy)
    assert jd.MirroredStrategy().num_replicas_in_sync == len(jax.devices())  # what is described is gone


def test_plan_prints_what_the_compiler_says(tmp_path: Path) -> None:
    printed = planned("v5e:2x2", 4, tmp_path)
    assert "Compiled for v5e:2x2, 4 device(s)" in printed
    assert "1 all-reduce of" in printed
    assert "v5e:1x1" in printed


def test_an_optimizer_without_slots_in_a_nest() -> None:
    def run() -> None:
        strategy = jd.MirroredStrategy()
        with strategy.scope():
            net = {"kernel": jd.Variable(jnp.ones((8, 8)))}
            optimizer = jd.Optimizer(optax.sgd(0.1), net)

        @jd.function
        def step(x: Any) -> None:
            def loss(x: Any) -> Any:
                return jnp.sum(x @ net["kernel"])

            strategy.run(lambda x: optimizer.apply_gradients(jd.grad(loss, net)(x)), (x,))

        for (x,) in strategy.experimental_distribute_dataset([(np.ones((8, 8), np.float32),)]):
            step(x)

    assert jd.experimental.compile_for(TOPOLOGY, run).replicas == CHIPS


def test_a_tables_step_makes_nothing_of_its_size_but_scatters() -> None:
    """Of a table that is larger than what a chip keeps beside its cores: smaller ones the compiler moves there."""
    rows, width = 20_000_000, 16

    def trained() -> None:
        strategy = jd.MirroredStrategy()
        with strategy.scope():
            table = jd.nn.ShardedTable(rows, width)
            optimizer = jd.Optimizer(optax.adagrad(0.1), [table])

        step = squares_step(strategy, table, optimizer)
        for ids in strategy.experimental_distribute_dataset([np.zeros((1024, 26), np.int32)]):
            step(ids)

    found = jd.experimental.compile_for(TOPOLOGY, trained)
    assert found.copied == ()
    assert found.donated >= found.state
    assert "all-to-all" in {one.kind for one in found.collectives}
    # The table and its slot, in parts of so many rows.
    made = re.findall(rf"= f32\[{rows // CHIPS},{width}\]\S* ([a-z-]+)\(", found.text)
    assert set(made) <= {"parameter", "get-tuple-element", "scatter", "fusion"}
    assert made.count("fusion") <= made.count("scatter") == 2
