from collections.abc import Callable
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute._src.core.checkpoint.forms import combine
from jaxtribute._src.core.collectives.cross_replica import joined_gradients
from jaxtribute._src.core.collectives.in_replica import contributions
from jaxtribute._src.core.execution.eager import Eager
from jaxtribute._src.core.values.enums import ReduceOp, VariableAggregation
from jaxtribute.errors import ArgumentError, CheckpointError
from replicas import execute, here, mirrored, per_replica, variable


@pytest.mark.parametrize("value", ["SUM", "sum", "Sum", ReduceOp.SUM])
def test_parse_takes_members_and_names_in_any_case(value: ReduceOp | str) -> None:
    assert ReduceOp.parse(value) is jd.ReduceOp.SUM  # pyright: ignore[reportArgumentType]
    assert ReduceOp.parse("mean") is ReduceOp.MEAN


@pytest.mark.parametrize("value", ["MAX", "", None, 0, VariableAggregation.SUM])
def test_parse_refuses_everything_else(value: str) -> None:
    with pytest.raises(ArgumentError, match=r"unknown reduce_op.*HINT: use jd.ReduceOp.SUM"):
        ReduceOp.parse(value)  # pyright: ignore[reportArgumentType]


def test_from_variable_aggregation() -> None:
    assert ReduceOp.from_variable_aggregation(VariableAggregation.SUM) is ReduceOp.SUM
    assert ReduceOp.from_variable_aggregation(VariableAggregation.MEAN) is ReduceOp.MEAN
    for aggregation in (VariableAggregation.NONE, VariableAggregation.ONLY_FIRST_REPLICA):
        with pytest.raises(ArgumentError, match=rf"{aggregation.name} is no reduction.*HINT"):
            ReduceOp.from_variable_aggregation(aggregation)


def test_numbers_are_those_of_tensorflow() -> None:
    assert [(member.name, member.value) for member in jd.VariableSynchronization] == [
        ("AUTO", 0),
        ("NONE", 1),
        ("ON_WRITE", 2),
        ("ON_READ", 3),
    ]
    assert [(member.name, member.value) for member in jd.VariableAggregation] == [
        ("NONE", 0),
        ("SUM", 1),
        ("MEAN", 2),
        ("ONLY_FIRST_REPLICA", 3),
    ]
    assert [(member.name, member.value) for member in jd.ReduceOp] == [("SUM", "SUM"), ("MEAN", "MEAN")]


@pytest.fixture
def product(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member `PRODUCT` in both enumerations, of which nothing else knows."""
    for kind, value in ((ReduceOp, "PRODUCT"), (VariableAggregation, 4)):
        member = object.__new__(kind)
        member._name_, member._value_ = "PRODUCT", value
        monkeypatch.setitem(cast("Any", kind)._member_map_, "PRODUCT", member)


PRODUCT: Any = "PRODUCT"
Y = jnp.asarray([2.0, 3.0])


def _in_replicas(fn: Callable[[Any], Any], compiled: bool = False) -> Any:
    strategy = mirrored(2)
    return execute("compiled" if compiled else "lockstep", strategy, fn, per_replica(strategy, [2.0, 3.0]))


def _updated(**options: Any) -> Any:
    with mirrored(2).scope():
        v = jd.Variable(jnp.zeros(2))
        optimizer = jd.Optimizer(optax.sgd(1.0), [v], **options)
    return mirrored(2).run(lambda: optimizer.apply_gradients([(Y, v)], reduce_op=ReduceOp[PRODUCT]))


ENTRIES: dict[str, Callable[[], Any]] = {
    "parse": lambda: ReduceOp.parse(PRODUCT),
    "reduce": lambda: mirrored(2).reduce(PRODUCT, per_replica(mirrored(2), [2.0, 3.0]), axis=None),
    "reduce along an axis": lambda: mirrored(2).reduce(PRODUCT, per_replica(mirrored(2), [Y, Y]), axis=0),
    "reduce of one replica": lambda: mirrored(1).reduce(PRODUCT, Y, axis=None),
    "all_reduce": lambda: _in_replicas(lambda x: here().all_reduce(ReduceOp[PRODUCT], x)),
    "all_reduce, compiled": lambda: _in_replicas(lambda x: here().all_reduce(ReduceOp[PRODUCT], x), True),
    "reduce in a merge_call": lambda: _in_replicas(
        lambda x: here().merge_call(lambda s, x: s.reduce(PRODUCT, x, axis=None), (x,)), True
    ),
    "reduce_to": lambda: mirrored(2).extended.reduce_to(PRODUCT, per_replica(mirrored(2), [2.0, 3.0]), "CPU:0"),
    "cross-device ops": lambda: jd.ReductionToOneDevice().reduce(PRODUCT, per_replica(mirrored(2), [Y, Y]), "CPU:0"),
    "the inside of cross-device ops": lambda: jd.ReductionToOneDevice().reduce_implementation(
        ReduceOp[PRODUCT], per_replica(mirrored(2), [Y, Y]), "CPU:0", None
    ),
    "gradients": _updated,
    "gradients in slices": lambda: _updated(shard_update=True),
    "accumulated gradients": lambda: _updated(accumulate_steps=2),
    "a cycle of gradients": lambda: jd.Optimizer(optax.sgd(1.0), [jd.Variable(Y)], accumulate_op=PRODUCT),
    "a variable": lambda: jd.Variable(Y, aggregation=PRODUCT),
    "an ON_READ variable": lambda: variable(mirrored(2), Y, synchronization="ON_READ", aggregation=PRODUCT),
    "an executor": lambda: Eager().reduce(
        mirrored(2), [per_replica(mirrored(2), [Y, Y])], ReduceOp[PRODUCT], axis=None
    ),
    "contributions": lambda: contributions([Y], ReduceOp[PRODUCT], 2, ()),
    "gradients that are joined": lambda: joined_gradients([Y], ReduceOp[PRODUCT], mirrored(2).extended.mesh),
    "rows in a checkpoint": lambda: combine(np.ones((2, 2), np.float32), PRODUCT),
}


@pytest.mark.usefixtures("product")
@pytest.mark.parametrize("entry", ENTRIES)
def test_an_operation_that_nothing_is_known_of_is_refused(entry: str) -> None:
    with pytest.raises((ArgumentError, CheckpointError), match=r"PRODUCT.*HINT"):
        ENTRIES[entry]()
