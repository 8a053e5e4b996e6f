"""Large float32 arrays that travel in a smaller type where they are summed, against the same rounding by NumPy."""

# The programs of a step are looked at from inside, and a value is of several replicas.
# pyright: reportCallIssue=false, reportFunctionMemberAccess=false, reportAttributeAccessIssue=false, reportPrivateUsage=false, reportArgumentType=false

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jd
import wire_programs
from jaxtribute._src.addons.testing.shared import SharedRunners
from jaxtribute._src.addons.wires.formats import FORMATS
from jaxtribute._src.core.collectives.summation import AutoSum
from jaxtribute.errors import ArgumentError, ArgumentTypeError
from replicas import execute, here
from samples import ALL_CASES
from wire_programs import BLOCKS, WIRES, hints, rounded, summed

SHAPES = ((4096,), (3, 1400), (5000,), (2, 50, 100), (4095,), (3,), ())


@cache
def wired(replicas: int, wire: str | None = None) -> jd.MirroredStrategy:
    return jd.MirroredStrategy(replicas, communication_options=hints(wire))


def reduced(strategy: jd.Strategy, op: str, executor: str, rows: list[Any], batch: int, options: Any = None) -> Any:
    """What each replica gets of `all_reduce` of the sums of its rows, of which a last batch may leave it none."""
    split = next(iter(strategy.experimental_distribute_dataset([tuple(row[:batch] for row in rows)])))

    def fn(parts: Any) -> Any:
        own = [part.sum(0) if part.dtype != np.int32 else part.max(0, initial=0) for part in parts]
        return here().all_reduce(op, own, options)  # pyright: ignore[reportArgumentType]

    return jax.tree.map(
        lambda value: [np.asarray(part) for part in strategy.experimental_local_results(value)],
        execute(executor, strategy, fn, split),
        is_leaf=lambda value: isinstance(value, jd.DistributedValues),
    )


@settings(max_examples=300 if ALL_CASES else 12)
@given(
    st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4),
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from(WIRES),
    st.sampled_from(["lockstep", "compiled"]),
    st.booleans(),
    st.booleans(),
    st.integers(-12, 12),
)
def test_sums_are_those_of_the_rounded_arrays(
    shapes: Any, replicas: int, wire: str, executor: str, even: bool, by_call: bool, exponent: int
) -> None:
    rng = np.random.default_rng(len(shapes))
    batch = 2 * replicas if even else 2 * replicas - 1
    rows = [(rng.normal(size=(batch, *shape)) * 2.0**exponent).astype(np.float32) for shape in shapes]
    strategy = wired(replicas) if by_call else wired(replicas, wire)
    found = reduced(strategy, "SUM", executor, rows, batch, hints(wire) if by_call else None)
    for array, values in zip(rows, found, strict=True):
        wanted = summed([array[2 * i : 2 * i + 2].sum(0) for i in range(replicas)], wire)
        exact = wanted.size < 4096 or replicas == 1
        for value in values:
            np.testing.assert_array_equal(value, values[0])
            if exact:
                np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5 * 2.0**exponent)
            else:
                np.testing.assert_array_equal(value, wanted)


@pytest.mark.parametrize("executor", ["lockstep", "compiled"])
def test_an_idle_replica_adds_nothing_and_a_mean_leaves_it_out(executor: str) -> None:
    rows = [np.random.default_rng(0).normal(size=(6, 5000)).astype(np.float32)]
    ((value, *others),) = reduced(wired(4, "int8"), "MEAN", executor, rows, 6)
    parts = [rows[0][2 * i : 2 * i + 2].sum(0) for i in range(3)]
    # XLA may multiply by a third.
    wanted = summed([*parts, np.zeros_like(parts[0])], "int8") / np.float32(3)
    np.testing.assert_allclose(value, wanted, rtol=3e-7)
    for other in others:
        np.testing.assert_array_equal(other, value)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(wire: str, bad: float) -> None:
    rows = [np.ones((2, 6000), np.float32)]
    rows[0][1, 3000] = bad
    ((value, other),) = reduced(wired(2, wire), "SUM", "compiled", rows, 2)
    np.testing.assert_array_equal(value, other)
    lost = ~np.isfinite(value)
    assert lost[3000]
    # A block is lost with it where blocks share a scale, and no other element is.
    assert lost.sum() == BLOCKS.get(wire, (1, 0))[0]
    np.testing.assert_allclose(value[~lost], 2, rtol=0.01)


def test_what_float16_cannot_hold_becomes_infinite() -> None:
    rows = [np.full((3, 5000), 40000, np.float32)]
    assert np.isinf(reduced(wired(3, "float16"), "SUM", "compiled", rows, 3)[0][0]).all()
    np.testing.assert_allclose(reduced(wired(3, "bfloat16"), "SUM", "compiled", rows, 3)[0][0], 120000, rtol=0.01)
    # Nothing is sent that two replicas have added up.
    np.testing.assert_array_equal(reduced(wired(2, "float16"), "SUM", "compiled", [rows[0][:2]], 2)[0][0], 80000)
    rows[0][0] = 70000
    assert np.isinf(reduced(wired(2, "float16"), "SUM", "compiled", [rows[0][:2]], 2)[0][0]).all()


def test_zeros_and_tiny_numbers() -> None:
    for scale in (0.0, 1e-30, 1e-37, 3e37):
        rows = [np.full((2, 5000), scale, np.float32)]
        value = reduced(wired(2, "int8"), "SUM", "compiled", rows, 2)[0][0]
        np.testing.assert_allclose(value, 2 * scale, rtol=0.02, atol=1e-36)


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("executor", ["lockstep", "compiled"])
def test_all_else_is_exact(executor: str) -> None:
    strategy = wired(2, "int8")
    numbers = np.random.default_rng(0).normal(size=(2, 5000)).astype(np.float32)
    whole = np.random.default_rng(0).integers(0, 1 << 30, (2, 5000)).astype(np.int32)
    exact = numbers[0] + numbers[1]
    integers, half, small = reduced(
        strategy, "SUM", executor, [whole, numbers.astype(jnp.bfloat16), numbers[:, :4095]], 2
    )
    np.testing.assert_array_equal(integers[0], whole[0] + whole[1])
    np.testing.assert_array_equal(small[0], exact[:4095])
    halves = numbers.astype(jnp.bfloat16)
    np.testing.assert_array_equal(half[0], halves[0] + halves[1])
    (forced,) = reduced(strategy, "SUM", executor, [numbers], 2, hints("float32"))
    np.testing.assert_array_equal(forced[0], exact)
    with strategy.scope():
        mean = jd.Variable(np.zeros(5000, np.float32), aggregation="MEAN")
    split = next(iter(strategy.experimental_distribute_dataset([numbers])))
    execute(executor, strategy, lambda row: mean.assign(row[0]), split)
    np.testing.assert_array_equal(mean.numpy(), exact / 2)
    total = strategy.reduce("SUM", execute(executor, strategy, lambda row: row[0], split), axis=None)
    np.testing.assert_array_equal(total, exact)
    on_host = strategy.extended.reduce_to("SUM", strategy.run(lambda row: row[0], (split,)), "CPU:0")
    np.testing.assert_array_equal(on_host, exact)


def test_reductions_between_replicas_take_the_hints() -> None:
    numbers = np.random.default_rng(0).normal(size=(2, 5000)).astype(np.float32)
    wanted = summed(list(numbers), "bfloat16")
    for strategy, options in ((wired(2), hints("bfloat16")), (wired(2, "bfloat16"), None)):
        with strategy.scope():
            target = jd.Variable(0.0)
        split = next(iter(strategy.experimental_distribute_dataset([numbers])))
        rows = strategy.run(lambda row: row[0], (split,))
        result = strategy.extended.reduce_to("SUM", rows, target, options)
        np.testing.assert_array_equal(np.asarray(result.values[0]), wanted)

        def merged(strategy: jd.Strategy, row: Any, target: Any = target, options: Any = options) -> Any:
            return strategy.extended.reduce_to("SUM", row, target, options)

        step = jd.function(lambda x, s=strategy, m=merged: s.run(lambda row: here().merge_call(m, (row[0],)), (x,)))
        np.testing.assert_array_equal(strategy.experimental_local_results(step(split))[1], wanted)


def text_of(wire: str | None, replicas: int = 2) -> tuple[str, str]:
    """The program of one sum as it is handed to the compiler, and as that makes it."""
    strategy = wired(replicas, wire)
    step = jd.function(lambda x: strategy.run(lambda row: here().all_reduce("SUM", row[0]), (x,)))
    split = next(iter(strategy.experimental_distribute_dataset([np.ones((replicas, 8192), np.float32)])))
    step(split)
    (program,) = step._signatures.programs.values()  # pyright: ignore[reportPrivateUsage]
    lowered = program.lower([split.data])
    return lowered.as_text(), lowered.compile().as_text()


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize(("wire", "small"), [("bfloat16", "u16"), ("float16", "u16"), ("int8", "s8")])
def test_the_small_type_is_what_travels(wire: str, small: str, replicas: int) -> None:
    lines = text_of(wire, replicas)[1].splitlines()
    sent = [line for line in lines if " all-to-all(" in line or " all-gather(" in line]
    assert len(sent) == (1 if replicas == 2 else 2)
    assert all(f"{small}[" in line and "f32[" not in line and "all-reduce" not in line for line in sent)


def test_without_a_type_it_is_the_sum_of_before() -> None:
    extended = wired(2).extended
    assert extended.summation(None) == AutoSum.of(extended.mesh) == extended.summation(hints("float32"))
    assert text_of(None)[0] == text_of("float32")[0]
    assert "all_to_all" not in text_of(None)[0]


def test_the_gradient_of_a_sum_is_rounded_alike() -> None:
    strategy = wired(2, "bfloat16")
    weights = np.random.default_rng(0).normal(size=(2, 5000)).astype(np.float32)
    split = next(iter(strategy.experimental_distribute_dataset([weights])))

    def gradient(row: Any) -> Any:
        return jax.grad(lambda x: (row[0] * here().all_reduce("SUM", x)).sum())(jnp.ones(5000, jnp.float32))

    result = strategy.experimental_local_results(execute("compiled", strategy, gradient, split))
    for value in result:
        np.testing.assert_array_equal(value, summed(list(weights), "bfloat16"))


def test_options() -> None:
    options = hints("int8", bytes_per_pack=7)
    assert (options.wire, hints(None).wire) == ("int8", None)
    assert "wire='int8'" in repr(options)
    with pytest.raises(ArgumentError, match=r"'int2'.*HINT.*'bfloat16'"):
        hints("int2")
    with pytest.raises(ArgumentError, match="error_feedback is True, and wire None rounds nothing"):
        hints(None, error_feedback=True)
    wrong: Any = 8
    with pytest.raises(ArgumentTypeError, match=r"wire is 8.*HINT"):
        hints(wrong)
    # The hints of a call come first, and name no type if they only pack.
    assert options.within(hints("bfloat16")) is options
    packing = hints(None, bytes_per_pack=7).within(options)
    assert (packing.wire, packing.bytes_per_pack) == ("int8", 7)


def test_a_call_that_only_packs_keeps_the_type_of_the_strategy() -> None:
    numbers = np.random.default_rng(0).normal(size=(2, 5000)).astype(np.float32)
    packing = hints(None, bytes_per_pack=1 << 20)
    ((value, _),) = reduced(wired(2, "int8"), "SUM", "compiled", [numbers], 2, packing)
    np.testing.assert_array_equal(value, summed(list(numbers), "int8"))


def test_feedback_within_steps_is_refused() -> None:
    feeding = hints("int4", error_feedback=True)
    with pytest.raises(ArgumentError, match=r"error_feedback is True for sums within steps.*HINT"):
        jd.MirroredStrategy(2, communication_options=feeding)
    assert hints(None, bytes_per_pack=7).within(feeding).error_feedback
    assert jd.MirroredStrategy(1, communication_options=feeding).num_replicas_in_sync == 1  # where nothing travels


@pytest.mark.parametrize("ops", [jd.ReductionToOneDevice(), jd.HierarchicalCopyAllReduce()])
def test_algorithms_that_add_up_their_own_way_are_refused(ops: jd.CrossDeviceOps) -> None:
    with pytest.raises(ArgumentError, match=rf"'int8' with {type(ops).__name__}.*HINT"):
        jd.MirroredStrategy(2, ops, communication_options=hints("int8"))
    strategy = jd.MirroredStrategy(2, ops)
    with pytest.raises(ArgumentError, match=rf"'int8' with {type(ops).__name__}.*HINT"):
        strategy.run(lambda: here().all_reduce("SUM", jnp.ones(3), hints("int8")))


def test_replicas_of_several_devices_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"'int8' for replicas of 2 devices.*HINT"):
        jd.MirroredStrategy(4, devices_per_replica=2, communication_options=hints("int8"))


def test_more_replicas_than_are_written_out() -> None:
    rows = [np.random.default_rng(0).normal(size=(16, 5000)).astype(np.float32)]
    strategy = wired(8, "int8")
    # Nine and more go through a loop: in the order of the replicas as well.
    from jaxtribute._src.addons.wires import summing

    written_out = reduced(strategy, "SUM", "compiled", rows, 16)[0][0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summing, "WRITTEN_OUT", 1)
        in_a_loop = reduced(strategy, "SUM", "compiled", rows, 16)[0][0]
    np.testing.assert_array_equal(in_a_loop, written_out)
    wanted = summed([rows[0][2 * i : 2 * i + 2].sum(0) for i in range(8)], "int8")
    np.testing.assert_array_equal(in_a_loop, wanted)


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("wire", WIRES)
def test_pieces_are_the_sum_of_the_whole(wire: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxtribute._src.addons.wires import summing

    numbers = np.random.default_rng(0).normal(size=(2, 3, 5000)).astype(np.float32)
    whole = reduced(wired(2, wire), "SUM", "compiled", [numbers], 2)[0][0]
    monkeypatch.setattr(summing, "PIECE", 1024)
    # As between processes of CPUs.
    monkeypatch.setattr(summing.WireSum, "operations_per_byte", 1.0)
    strategy = jd.MirroredStrategy(2, communication_options=hints(wire))
    in_pieces = reduced(strategy, "SUM", "compiled", [numbers], 2)[0][0]
    np.testing.assert_array_equal(in_pieces, whole)


@pytest.mark.quick_cases(3, whole=True)
@pytest.mark.parametrize("wire", WIRES)
def test_training_on_digits(wire: str) -> None:
    exact, _ = wire_programs.train(wired(2))
    losses, weights = wire_programs.train(wired(2, wire))
    assert losses != exact  # it was rounded
    np.testing.assert_allclose(np.mean(losses[-7:]), np.mean(exact[-7:]), rtol=0.01)
    assert all(np.isfinite(weight).all() for weight in weights)


@pytest.mark.slow
def test_two_processes(multi_process: SharedRunners) -> None:
    first, second = multi_process(workers=2, devices=1).run(wire_programs.on_this_worker)
    parts = wire_programs.parts(2)
    for wire in (None, *WIRES):
        wanted = summed(list(parts), wire)
        for sums, (losses, weights) in (first[str(wire)], second[str(wire)]):
            for value in sums:
                np.testing.assert_array_equal(value, wanted)
            assert losses == first[str(wire)][1][0]
            np.testing.assert_allclose(losses[-1], first["None"][1][0][-1], rtol=0.02)
            for weight, other in zip(weights, first[str(wire)][1][1], strict=True):
                np.testing.assert_array_equal(weight, other)


def test_rounding_by_numpy_is_within_half_a_step() -> None:
    values = np.random.default_rng(0).normal(size=2560).astype(np.float32)
    steps = np.abs(values.reshape(-1, 256)).max(1, keepdims=True) / 127
    assert (np.abs(rounded(values, "int8") - values).reshape(-1, 256) <= 0.51 * steps).all()


@pytest.mark.quick_cases(1, whole=True)
@pytest.mark.parametrize("wire", sorted(FORMATS))
@given(seed=st.integers(0, 2**32 - 1), blocks=st.integers(1, 3), rows=st.sampled_from([(), (1,), (3,)]))
@settings(max_examples=30)
def test_numpy_and_jax_read_the_same_bits(wire: str, seed: int, blocks: int, rows: tuple[int, ...]) -> None:
    chance, kind = np.random.default_rng(seed), FORMATS[wire]
    values = chance.normal(size=(*rows, 256 * blocks)) * 10.0 ** chance.integers(-40, 38, size=256 * blocks)
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    values[..., chance.integers(256 * blocks)] = chance.choice([0, np.inf, -np.inf, np.nan, 1e-45])
    sent = jax.jit(kind.encode)(values)
    by_jax, by_numpy = np.asarray(jax.jit(kind.decode)(sent)), kind.decode(np.asarray(sent), np)
    assert by_numpy.dtype == np.float32
    np.testing.assert_array_equal(np.isnan(by_jax), np.isnan(by_numpy))
    finite = ~np.isnan(by_jax)
    np.testing.assert_array_equal(by_jax[finite].view(np.int32), by_numpy[finite].view(np.int32))
