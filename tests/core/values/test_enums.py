import pytest

import jaxtribute as jd
from jaxtribute._src.core.values.enums import ReduceOp, VariableAggregation
from jaxtribute.errors import ArgumentError


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
