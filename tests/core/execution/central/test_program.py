"""A program in two places: where its arrays are, and what travels."""

# The results are of several replicas, and names of reductions are right or wrong by intent.
# pyright: reportAttributeAccessIssue=false

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute._src.core.execution.central import plan as plans
from replicas import components, fraction, variable

SUM = jd.VariableAggregation.SUM


def central() -> jd.CentralStorageStrategy:
    return jd.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:3")


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes in bytes of what goes up to the replicas, as it goes."""
    sizes: list[int] = []
    put = jax.device_put

    def counted(value: Any, device: Any = None, **options: Any) -> Any:
        if isinstance(value, jax.Array) and len(getattr(device, "device_set", ())) > 1:
            sizes.append(value.nbytes)
        return put(value, device, **options)

    monkeypatch.setattr(jax, "device_put", counted)
    return sizes


def test_small_variables_go_up_together_and_large_ones_alone(moves: list[int]) -> None:
    strategy = central()
    small = [variable(strategy, jnp.ones(4), aggregation=SUM) for _ in range(3)]
    large = variable(strategy, jnp.ones(20_000), aggregation=SUM)
    assert plans.PACKED_BYTES < 80_000

    def replica() -> None:
        for v in [*small, large]:
            v.assign_add(v.read_value() * fraction())

    step = jd.function(lambda: strategy.run(replica))
    step()
    moves.clear()
    step()
    assert sorted(moves) == [48, 80_000]
    assert [components(v)[0][0] for v in [*small, large]] == [4.0] * 4


def test_what_no_step_writes_stays_up(moves: list[int]) -> None:
    strategy = central()
    constant, v = variable(strategy, jnp.ones(8)), variable(strategy, 0.0, aggregation=SUM)
    step = jd.function(lambda: strategy.run(lambda: (v.assign_add((constant * v + 1).sum()), None)[1]))
    step()
    moves.clear()
    step()
    assert moves == [4]
    constant.assign(jnp.zeros(8))
    step()
    step()
    assert moves.count(32) == 1  # what was assigned goes up once
    assert moves.count(4) == 3


def test_slots_never_go_up(moves: list[int]) -> None:
    strategy = central()
    with strategy.scope():
        v = jd.Variable(jnp.ones(10))
    optimizer = jd.Optimizer(optax.sgd(0.1, momentum=0.9), [v])
    step = jd.function(lambda: strategy.run(lambda: optimizer.apply_gradients([v * fraction()])))
    for _ in range(3):
        step()
    assert set(moves) == {40}
    assert all(slot.stored.devices() == {jax.devices()[3]} for slot in optimizer.variables)


def test_slots_never_go_up_between_the_runs_of_one_program(moves: list[int]) -> None:
    strategy = central()
    with strategy.scope():
        v = jd.Variable(jnp.ones(10))
    optimizer = jd.Optimizer(optax.sgd(0.1, momentum=0.9), [v])

    @jd.function
    def steps() -> None:
        for _ in range(3):
            strategy.run(lambda: optimizer.apply_gradients([v * fraction()]))

    steps()
    moves.clear()
    steps()
    assert moves == [40] * 3


def test_the_old_values_are_given_up() -> None:
    strategy = central()
    v = variable(strategy, jnp.ones(1000), aggregation=SUM)
    step = jd.function(lambda: strategy.run(lambda: (v.assign_add(jnp.ones(1000) * fraction()), None)[1]))
    step()
    old = v.stored
    step()
    assert old.is_deleted()
    np.testing.assert_array_equal(v.numpy(), np.full(1000, 3.0))


def test_results_lie_on_the_replicas() -> None:
    strategy = central()
    v = variable(strategy, 1.0)
    result = jd.function(lambda: strategy.run(lambda: v + fraction()))()
    assert [part.devices() for part in result.values] == [{jax.devices()[0]}, {jax.devices()[1]}]


def test_arguments_may_lie_anywhere() -> None:
    strategy = central()
    v = variable(strategy, jnp.zeros(2))

    @jd.function
    def step(x: Any) -> None:
        v.assign_add(x)

    ones = np.ones(2, np.float32)
    for x in (ones, jnp.asarray(ones), jax.device_put(ones, jax.devices()[6]), strategy.place(ones).data):
        step(x)
    assert components(v) == [[4.0, 4.0]]
    assert v.stored.devices() == {jax.devices()[3]}


def test_an_error_while_tracing_changes_nothing() -> None:
    strategy = central()
    v = variable(strategy, 1.0)

    @jd.function
    def step() -> None:
        v.assign(2.0)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        step()
    assert components(v) == [1.0]
