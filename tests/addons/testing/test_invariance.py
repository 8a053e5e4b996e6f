"""A step that computes the same everywhere passes; what depends on the strategy is shown."""

from collections.abc import Generator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from arrangements import WORKERS
from jaxtribute.errors import ArgumentError, ArgumentTypeError
from jaxtribute.testing import assert_strategy_invariant

ROWS = np.arange(10, dtype=np.float32)


def training(strategy: jd.Strategy, compiled: bool = True) -> Generator[Any]:
    """Three steps over batches of 4, 4 and 2 rows."""
    with strategy.scope():
        weight = jd.Variable(1.0, name="weight", aggregation=jd.VariableAggregation.SUM)

    def replica(rows: Any) -> Any:
        weight.assign_sub(0.01 * rows.sum())
        return rows * weight.read_value()

    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica, args=(batch,)), axis=0)

    step = jd.function(step) if compiled else step
    dataset = strategy.experimental_make_numpy_dataset(ROWS).batch(4)
    for batch in strategy.experimental_distribute_dataset(dataset):
        yield {"total": step(batch), "weight": weight}


def replicas(strategy: jd.Strategy) -> dict[str, Any]:
    return {"same": 1.0, "replicas": jnp.float32(strategy.num_replicas_in_sync)}


def test_a_program_that_is_invariant() -> None:
    assert_strategy_invariant(training, devices=(1, 2, 3, 100))


def both_ways(strategy: jd.Strategy) -> Generator[Any]:
    """The same steps, compiled and as Python; in the batches of 4, 4 and 2 rows some replicas get fewer, or none."""
    yield from training(strategy)
    yield from training(strategy, compiled=False)


@pytest.mark.slow
def test_a_program_that_is_invariant_in_every_arrangement() -> None:
    assert_strategy_invariant(both_ways, devices=(1, 2, 4), workers=WORKERS)


def test_the_first_difference_is_shown() -> None:
    words = (
        r"\['replicas'\] in the result depends on the strategy: 2.0 with MirroredStrategy, 2 device\(s\), 1.0 with One"
    )
    with pytest.raises(AssertionError, match=words):
        assert_strategy_invariant(replicas, devices=(1, 2))


def test_the_step_and_the_element_are_shown() -> None:
    def program(strategy: jd.Strategy) -> Generator[Any]:
        yield np.zeros((2, 2))
        yield np.array([[0.0, 1.0], [strategy.num_replicas_in_sync, 3.0]])

    with pytest.raises(AssertionError) as caught:
        assert_strategy_invariant(program, devices=(2,))
    assert str(caught.value) == (
        "the value at step 2 of 2 depends on the strategy: 2.0 with MirroredStrategy, 2 device(s), "
        "1.0 with OneDeviceStrategy at [1, 0], the first of 1 of 4 elements that differ:\n"
        "[[0.0, 1.0], [2.0, 3.0]]\n[[0.0, 1.0], [1.0, 3.0]]"
    )


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        (lambda policy: policy.parameter_device is not None, "CentralStorageStrategy, 2 devices"),
        (lambda policy: policy.form == "flat", "FullyShardedStrategy, 2 devices"),
    ],
)
def test_other_ways_to_store_even_small_variables_are_tried(stored: Any, name: str) -> None:
    def program(strategy: jd.Strategy) -> float:
        with strategy.scope():
            return float(stored(jd.Variable(np.zeros(4, np.float32)).policy))

    with pytest.raises(AssertionError, match=f"the strategy: 1.0 with {name}, 0.0 with One"):
        assert_strategy_invariant(program, devices=(1, 2))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (lambda s: np.zeros(s.num_replicas_in_sync), r"float64\[2\] with .*, float64\[1\] with One"),
        (lambda s: dict.fromkeys(range(s.num_replicas_in_sync), 0), r"gives \['\[0\]', '\[1\]'\], and"),
        (lambda s: (0 for _ in range(s.num_replicas_in_sync)), "takes 2 steps, OneDeviceStrategy 1"),
    ],
)
def test_other_differences(program: Any, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        assert_strategy_invariant(program, devices=(2,))


def test_small_floating_point_types_and_tolerances() -> None:
    def program(strategy: jd.Strategy) -> Any:
        return jnp.bfloat16(1 + strategy.num_replicas_in_sync / 64)

    assert_strategy_invariant(program, devices=(2,), rtol=0.1)
    with pytest.raises(AssertionError, match="with OneDeviceStrategy"):
        assert_strategy_invariant(program, devices=(2,), rtol=1e-4)


def test_values_of_replicas_cannot_be_compared() -> None:
    def program(strategy: jd.Strategy) -> Any:
        return {"x": strategy.run(lambda: jnp.zeros(2))}

    with pytest.raises(ArgumentTypeError, match=r"\['x'\] has a part on each replica"):
        assert_strategy_invariant(program, strategies={"a": lambda: jd.MirroredStrategy(["CPU:0", "CPU:1"])} | TWO)


TWO = {"b": lambda: jd.MirroredStrategy(["CPU:0", "CPU:1"])}


def test_there_must_be_something_to_compare() -> None:
    with pytest.raises(ArgumentError, match="leaves nothing to compare"):
        assert_strategy_invariant(replicas, devices=(99,))
