"""`UnionResolver`: what `test_tensorflow` does not ask."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute.cluster_resolver import SimpleClusterResolver, TFConfigClusterResolver, UnionResolver
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ClusterSpecError


def simple(jobs: Any, **more: Any) -> SimpleClusterResolver:
    return SimpleClusterResolver(jd.ClusterSpec(jobs), **more)


def test_an_override_of_accelerators_keeps_the_cluster() -> None:
    config = '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}'
    told = TFConfigClusterResolver(environ={"TF_CONFIG": config})
    union = UnionResolver(SimpleClusterResolver(told.cluster_spec(), num_accelerators={"GPU": 1}), told)
    assert union.cluster_spec() == told.cluster_spec()
    assert union.num_accelerators() == {"GPU": 1}


def test_what_is_set_here_comes_first() -> None:
    union = UnionResolver(simple({"worker": ["a:1", "b:2"]}, task_type="worker", task_id=1, rpc_layer="grpc"))
    assert (union.own_task(), union.rpc_layer) == (("worker", 1), "grpc")
    union.task_type, union.task_id, union.rpc_layer = "worker", 0, "ssl"
    assert (union.own_task(), union.rpc_layer) == (("worker", 0), "ssl")


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=4))
def test_lists_are_put_one_after_the_other(sizes: list[list[int]]) -> None:
    parts = [[f"h{number}:{index}" for index in range(len(part))] for number, part in enumerate(sizes)]
    union = UnionResolver(*(simple({"worker": part}) for part in parts if part), simple({"worker": ["last:1"]}))
    assert union.cluster_spec() == {"worker": [*(address for part in parts for address in part), "last:1"]}


def test_one_index_cannot_be_at_two_addresses() -> None:
    with pytest.raises(ClusterSpecError, match=r"two resolvers describe worker 1: one at 'b:2', one at 'c:3'\. HINT"):
        UnionResolver(simple({"worker": ["a:1", "b:2"]}), simple({"worker": {1: "c:3"}})).cluster_spec()


def test_two_tasks_cannot_be_at_one_address() -> None:
    with pytest.raises(ClusterSpecError, match="worker 0 and worker 2 have the same address 'a:1'"):
        UnionResolver(simple({"worker": ["a:1", "b:2"]}), simple({"worker": ["a:1"]})).cluster_spec()


def test_something_to_unite_is_needed() -> None:
    with pytest.raises(ArgumentError, match="HINT: pass at least one"):
        UnionResolver()
    with pytest.raises(ArgumentTypeError, match=r"3 is no cluster resolver\. HINT"):
        UnionResolver(3)  # type: ignore[arg-type]
