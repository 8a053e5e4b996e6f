"""`SimpleClusterResolver`: what `test_tensorflow` does not ask."""

from typing import Any

import pytest

import jaxtribute as jd
from jaxtribute.cluster_resolver import SimpleClusterResolver
from jaxtribute.errors import ArgumentTypeError

TWO = jd.ClusterSpec({"worker": ["a:1", "b:2"]})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (({"worker": ["a:1"]},), r"of type dict\. HINT: pass jd\.ClusterSpec"),
        ((TWO, 3), r"master is 3\. HINT: pass an address"),
    ],
)
def test_a_wrong_type_is_shown(arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises(ArgumentTypeError, match=says):
        SimpleClusterResolver(*arguments)


def test_accelerators_are_whatever_was_said_for_every_task() -> None:
    resolver = SimpleClusterResolver(TWO, num_accelerators={"TPU": 4})
    resolver.num_accelerators()["TPU"] = 9
    assert resolver.num_accelerators("worker", 1) == {"TPU": 4}


def test_the_task_is_checked_where_it_is_needed() -> None:
    resolver = SimpleClusterResolver(TWO, task_type="worker", task_id=1)
    assert resolver.own_task() == ("worker", 1)
    assert resolver.get_tasks() == ["a:1", "b:2"]
