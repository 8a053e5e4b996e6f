"""Several steps a call: the results and state of as many single calls, whatever the number and the end of the data."""

import gc
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute.errors import ArgumentError, ArgumentTypeError, OutOfRangeError, ShapeError
from replicas import components, mirrored, one_device, variable


class Counter:
    """A step that adds up what it sees; a method, as steps often are."""

    def __init__(self, strategy: jd.Strategy) -> None:
        self.strategy = strategy
        self.total = variable(strategy, 0.0, aggregation=jd.VariableAggregation.SUM)

    def replica_step(self, x: Any) -> Any:
        self.total.assign_add(x.sum())
        return x.sum()

    @jd.function
    def compiled(self, batch: Any) -> Any:
        return {"sum": self.strategy.reduce("SUM", self.strategy.run(self.replica_step, (batch,)), axis=None)}

    def plain(self, batch: Any) -> Any:
        return self.compiled(batch)


def batches(strategy: jd.Strategy, sizes: Any) -> Any:
    cuts = np.cumsum([0, *sizes])
    data = [np.arange(a, b, dtype=np.float32) for a, b in pairwise(cuts)]
    return data, iter(strategy.experimental_distribute_dataset(data))


SHARED = {n: Counter(mirrored(n) if n > 1 else one_device(0)) for n in (1, 2)}


@settings(max_examples=6)
@given(
    replicas=st.sampled_from([1, 2]),
    full=st.integers(0, 5),
    last=st.integers(0, 3),
    n=st.integers(1, 4),
    per_call=st.integers(1, 3),
)
def test_they_do_what_single_steps_do(replicas: int, full: int, last: int, n: int, per_call: int) -> None:
    counter = SHARED[replicas]
    data, iterator = batches(counter.strategy, [4] * full + ([last] if last else []))
    counter.total.assign(0.0)
    seen: list[float] = []
    while True:
        try:
            sums = counter.strategy.run_steps(counter.compiled, iterator, n, steps_per_call=per_call)["sum"]
        except OutOfRangeError:
            break
        assert sums.shape[0] == min(n, len(data) - len(seen))
        seen.extend(np.asarray(sums).tolist())
    np.testing.assert_allclose(seen, [x.sum() for x in data], rtol=1e-6)
    np.testing.assert_allclose(float(counter.total), sum(seen), rtol=1e-6)


def test_each_step_and_number_is_compiled_once() -> None:
    counter = Counter(mirrored(2))
    _, iterator = batches(counter.strategy, [2] * 20)
    for _ in range(3):
        counter.strategy.run_steps(counter.plain, iterator, 5, steps_per_call=3)
    kept = counter.strategy._step_loops  # pyright: ignore[reportPrivateUsage]
    assert kept is not None
    loops = kept._loops  # pyright: ignore[reportPrivateUsage]
    compiled = loops[counter]
    assert sorted(steps for _, steps in compiled) == [2, 3]
    assert {one.experimental_get_tracing_count() for one in compiled.values()} == {1}
    before = len(loops)
    del counter, compiled
    gc.collect()
    assert len(loops) < before


def test_the_position_is_that_after_the_last_step() -> None:
    counter = Counter(one_device(0))
    _, iterator = batches(counter.strategy, [2] * 6)
    counter.strategy.run_steps(counter.compiled, iterator, 2)
    counter.strategy.run_steps(counter.compiled, iterator, 3)
    assert iterator.get_state()["position"]["step"] == 5
    assert float(np.asarray(next(iterator)).sum()) == 21


def test_results_of_every_kind() -> None:
    strategy = mirrored(2)
    _, iterator = batches(strategy, [4] * 5)

    def step(x: Any) -> Any:
        each = strategy.run(lambda x: (x, x.sum(), jnp.float32(2), "name"), (x,))
        return *each, 1, None

    for n in (2, 3):  # in one program, and in two
        rows, sums, mirror, name, number, nothing = strategy.run_steps(step, iterator, n, steps_per_call=2)
        start = 0 if n == 2 else 8
        expected = np.arange(start, start + 4 * n, dtype=np.float32).reshape(n, 2, 2)
        assert components(rows) == expected.transpose(1, 0, 2).tolist()
        assert components(sums) == expected.sum(-1).T.tolist()
        assert components(mirror) == [[2.0] * n] * 2
        assert (name, number.tolist(), nothing) == ("name", [1] * n, None)


def test_inside_a_function_and_outside_of_every_one() -> None:
    counter = Counter(mirrored(2))
    data, iterator = batches(counter.strategy, [2] * 4)
    epoch = jd.function(lambda it: counter.strategy.run_steps(counter.compiled, it, 3)["sum"].sum())
    assert float(epoch(iterator)) == sum(x.sum() for x in data[:3])


def test_what_cannot_be_stacked() -> None:
    strategy = mirrored(2)

    def step(x: Any) -> Any:
        return strategy.run(lambda x: x, (x,))

    with pytest.raises(ShapeError, match=r"differ from replica to replica or step to step.*HINT: reduce"):
        strategy.run_steps(step, batches(strategy, [4, 2])[1], 2)
    alone = one_device(0)
    with pytest.raises(ShapeError, match=r"shapes \[\(2,\), \(4,\)\].*HINT: reduce"):
        alone.run_steps(lambda x: alone.run(lambda x: x, (x,)), batches(alone, [4, 2])[1], 2)


def test_bad_arguments() -> None:
    counter = SHARED[1]
    iterator = batches(counter.strategy, [2])[1]
    for n, per_call, named in ((0, 1, "n is 0"), (True, 1, "n is True"), (1, 1.5, "steps_per_call is 1.5")):
        with pytest.raises((ArgumentError, ArgumentTypeError), match=f"{named}.*HINT"):
            counter.strategy.run_steps(counter.compiled, iterator, n, steps_per_call=per_call)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentTypeError, match=r"iterator is a list_iterator.*HINT: pass the iterator of"):
        counter.strategy.run_steps(counter.compiled, iter([1]), 1)
    iterator.close()
