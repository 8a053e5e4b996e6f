"""What all resolvers do."""

import pytest

import jaxtribute as jd
from jaxtribute._src.core.cluster.resolvers.base import integer
from jaxtribute.errors import ClusterSpecError

TWO = jd.ClusterSpec({"worker": ["a:1", "b:2"], "ps": ["c:3"]})


class Known(jd.cluster_resolver.ClusterResolver):
    """The least that a resolver of one's own is."""

    def cluster_spec(self) -> jd.ClusterSpec:
        return TWO


def test_a_resolver_needs_a_cluster() -> None:
    with pytest.raises(TypeError, match="cluster_spec"):
        jd.cluster_resolver.ClusterResolver()  # type: ignore[abstract]


def test_the_least_resolver_knows_no_task() -> None:
    resolver = Known()
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer, resolver.environment) == (None, None, None, "")
    assert resolver.master() == ""
    assert Known.detect({"TF_CONFIG": "{}"}) is None


def test_the_task_can_be_set() -> None:
    resolver = Known()
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 1, "grpc"
    assert resolver.own_task() == ("worker", 1)
    assert resolver.get_job_name() == "worker"
    assert resolver.get_tasks() == ["a:1", "b:2"]
    assert resolver.master() == "grpc://b:2"
    assert resolver.master("ps", 0) == "grpc://c:3"
    assert resolver.master(task_id=0, rpc_layer="ssl") == "ssl://a:1"


def test_a_task_that_is_not_known_is_an_error_where_it_is_needed() -> None:
    for resolver in (Known(), Known("worker"), Known(task_id=0)):
        with pytest.raises(ClusterSpecError, match=r"Known does not know which task .* HINT: set both"):
            resolver.own_task()


def test_a_task_outside_the_cluster_is_an_error_unless_it_evaluates() -> None:
    with pytest.raises(ClusterSpecError, match=r"no task 2 in job 'worker'"):
        Known("worker", 2).own_task()
    with pytest.raises(ClusterSpecError, match=r"no job 'chief'"):
        Known("chief", 0).own_task()
    assert Known("evaluator", 0).own_task() == ("evaluator", 0)


def test_accelerators_are_those_of_this_process() -> None:
    resolver = Known("worker", 1)
    here = resolver.num_accelerators()
    assert here.get("CPU") is None
    assert resolver.num_accelerators("worker", 1) == here
    assert resolver.num_accelerators("worker", 0) == {}


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "²"])
def test_a_variable_that_is_no_number_is_quoted(text: str) -> None:
    with pytest.raises(ClusterSpecError, match=rf"RANK is '{text}': expected a whole number"):
        integer({"RANK": text}, "RANK")
