"""Options of distributed datasets, and the input context."""

from typing import Any

import pytest

from jaxtribute.errors import ArgumentError, ArgumentTypeError, InputError
from jaxtribute.input import AutoShardPolicy, InputContext, InputOptions, InputReplicationMode


def test_the_defaults_are_those_of_tensorflow() -> None:
    options = InputOptions()
    assert options.experimental_fetch_to_device is True
    assert options.experimental_replication_mode is InputReplicationMode.PER_WORKER
    assert options.experimental_place_dataset_on_device is False
    assert options.experimental_per_replica_buffer_size == 1
    assert options.auto_shard_policy is None


@pytest.mark.parametrize("name", ["experimental_fetch_to_device", "experimental_prefetch_to_device"])
def test_both_names_of_the_placement_mean_the_same(name: str) -> None:
    given: dict[str, Any] = {name: False}
    options = InputOptions(**given)
    assert options.experimental_fetch_to_device is False
    assert options.experimental_prefetch_to_device is False


def test_names_that_disagree_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"=True.*=False.*HINT"):
        InputOptions(experimental_fetch_to_device=True, experimental_prefetch_to_device=False)


def test_a_negative_buffer_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"-1.*HINT"):
        InputOptions(experimental_per_replica_buffer_size=-1)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"experimental_replication_mode": "PER_HOST"}, ArgumentError),
        ({"auto_shard_policy": "ROWS"}, ArgumentError),
        ({"auto_shard_policy": 1}, ArgumentTypeError),
    ],
)
def test_members_of_enums_are_asked_for(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"HINT: pass one of \w+\."):
        InputOptions(**given)


def test_the_policies_have_tensorflows_values() -> None:
    assert {policy.name: policy.value for policy in AutoShardPolicy} == {
        "OFF": -1,
        "AUTO": 0,
        "FILE": 1,
        "DATA": 2,
        "HINT": 3,
    }


def test_options_are_values() -> None:
    assert InputOptions() == InputOptions(experimental_fetch_to_device=True)
    assert len({InputOptions(), InputOptions(), InputOptions(experimental_fetch_to_device=False)}) == 2


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
    assert str(InputContext(2, 1, 4)) == "jaxtribute.InputContext(input pipeline id 1, total: 2)"
