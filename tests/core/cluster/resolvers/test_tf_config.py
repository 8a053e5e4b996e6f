"""`TF_CONFIG`: what `test_tensorflow` does not ask."""

import json
from typing import Any

import pytest

import jaxtribute as jd
from jaxtribute.cluster_resolver import TFConfigClusterResolver
from jaxtribute.errors import ClusterSpecError

TWO = {"worker": ["a:1", "b:2"]}


def resolver(config: Any, **more: Any) -> TFConfigClusterResolver:
    text = config if isinstance(config, str) else json.dumps(config)
    return TFConfigClusterResolver(environ={"TF_CONFIG": text}, **more)


def test_the_environment_is_read_at_each_question() -> None:
    environ = {"TF_CONFIG": json.dumps({"cluster": TWO, "task": {"type": "worker", "index": 0}})}
    found = TFConfigClusterResolver(environ=environ)
    assert found.own_task() == ("worker", 0)
    environ["TF_CONFIG"] = json.dumps({"cluster": {"chief": ["c:3"]}, "task": {"type": "chief", "index": 0}})
    assert found.own_task() == ("chief", 0)
    assert found.cluster_spec() == {"chief": ["c:3"]}
    del environ["TF_CONFIG"]
    assert found.cluster_spec() == {}
    assert found.task_type is None


def test_what_is_set_overrides_what_is_read() -> None:
    found = resolver({"cluster": TWO, "task": {"type": "worker", "index": 0}}, environment="cloud")
    found.task_id = 1
    found.rpc_layer = "ssl"
    assert found.master() == "ssl://b:2"
    assert found.environment == "cloud"
    found.task_type = "chief"
    with pytest.raises(ClusterSpecError, match="no job 'chief'"):
        found.own_task()


def test_an_evaluator_is_outside_the_cluster() -> None:
    assert resolver({"cluster": TWO, "task": {"type": "evaluator", "index": 0}}).own_task() == ("evaluator", 0)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("{'worker'", r"TF_CONFIG is \"\{'worker'\": it is no JSON: Expecting .* HINT: write \{\"cluster\": "),
        ("3", r"TF_CONFIG is '3': it is a int, not an object\. HINT"),
        ({"cluster": TWO}, r"TF_CONFIG is .*: it does not say which task this process is\. HINT: write"),
        ({"cluster": TWO, "task": {"type": "worker"}}, r"it does not say which task"),
        ({"cluster": TWO, "task": 3}, r"its task is 3, not an object with a type and an index"),
        (
            {"cluster": TWO, "task": {"type": "worker", "index": "x"}},
            r"the task's index is 'x', and not a whole number",
        ),
        (
            {"cluster": TWO, "task": {"type": "worker", "index": 2}},
            r"the task in TF_CONFIG=.* is wrong: there is no task 2 in job 'worker', whose tasks are \[0, 1\]\. HINT",
        ),
        (
            {"cluster": TWO, "task": {"type": "chief", "index": 0}},
            r"the task in TF_CONFIG=.* is wrong: there is no job 'chief' in the cluster, whose jobs are \['worker'\]",
        ),
        (
            {"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 0}},
            r"the cluster in TF_CONFIG=.* is malformed: worker 0 and worker 1 have the same address 'a:1'.*HINT",
        ),
        (
            {"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}},
            r"the cluster in TF_CONFIG=.* is malformed: the tasks of job 'worker' are a list .* not 'a:1' of type str",
        ),
    ],
)
def test_what_is_wrong_is_quoted_with_what_is_expected(config: Any, says: str) -> None:
    with pytest.raises(ClusterSpecError, match=says):
        resolver(config).own_task()


def test_a_strategy_says_the_same() -> None:
    with pytest.raises(ClusterSpecError, match=r"TF_CONFIG is .*: it does not say which task this process is"):
        jd.MultiWorkerMirroredStrategy(resolver({"cluster": TWO}))


def test_a_master_of_a_cluster_needs_the_task() -> None:
    with pytest.raises(ClusterSpecError, match="which task this process is"):
        resolver({"cluster": TWO}).master()


def test_unset_and_blank_are_the_same() -> None:
    assert resolver("").cluster_spec() == TFConfigClusterResolver(environ={}).cluster_spec() == {}
