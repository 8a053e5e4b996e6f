"""The input context."""

import pytest

from jaxtribute.errors import ArgumentError, InputError
from jaxtribute.input import InputContext


def test_defaults() -> None:
    context = InputContext()
    assert (context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync) == (1, 0, 1)


def test_the_per_replica_batch_size() -> None:
    assert InputContext(2, 1, 4).get_per_replica_batch_size(32) == 8


def test_a_batch_that_the_replicas_do_not_divide() -> None:
    with pytest.raises(
        ValueError, match=r"The `global_batch_size` 10 is not divisible by `num_replicas_in_sync` 4.*use 12"
    ) as caught:
        InputContext(1, 0, 4).get_per_replica_batch_size(10)
    assert isinstance(caught.value, InputError)


@pytest.mark.parametrize("arguments", [(0, 0, 1), (1, 1, 1), (2, -1, 2), (1, 0, 0)])
def test_impossible_places(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ArgumentError, match="HINT"):
        InputContext(*arguments)


def test_it_prints_its_place() -> None:
    assert str(InputContext(2, 1, 4)) == "jaxtribute.InputContext(input pipeline id 1, total: 2, replicas: 4)"
