"""Descriptions of clusters: forms, checks, round trips."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxtribute as jd
from jaxtribute._src.core.cluster.spec import ClusterDef, JobDef
from jaxtribute.errors import ArgumentTypeError, ClusterSpecError

TWO = {"worker": ["a:1", "b:2"], "ps": ["c:3"]}


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, dict[int, str]]:
    """Jobs with tasks at any indices, each at an address of its own."""
    names = draw(st.lists(st.sampled_from(["chief", "worker", "ps", "evaluator", "a job"]), unique=True))
    ports = iter(range(1, 100))
    return {
        name: {index: f"host{index}:{next(ports)}" for index in draw(st.sets(st.integers(0, 30), max_size=8))}
        for name in names
    }


class TestRoundTrips:
    @given(clusters())
    def test_every_form_of_a_cluster_gives_the_cluster(self, cluster: dict[str, dict[int, str]]) -> None:
        spec = jd.ClusterSpec(cluster)
        assert jd.ClusterSpec(spec) == spec
        assert jd.ClusterSpec(spec.as_dict()) == spec
        assert jd.ClusterSpec(spec.as_cluster_def()) == spec
        assert spec == cluster
        assert eval(repr(spec), {"ClusterSpec": jd.ClusterSpec}) == spec

    @given(clusters())
    def test_methods_agree_with_the_tasks(self, cluster: dict[str, dict[int, str]]) -> None:
        spec = jd.ClusterSpec(cluster)
        assert spec.jobs == list(cluster)
        assert bool(spec) == bool(cluster)
        for job, tasks in cluster.items():
            assert spec.num_tasks(job) == len(tasks)
            assert spec.task_indices(job) == sorted(tasks)
            assert {index: spec.task_address(job, index) for index in tasks} == tasks
            assert {index: task for index, task in enumerate(spec.job_tasks(job)) if task is not None} == tasks
            dense = sorted(tasks) == list(range(len(tasks))) and tasks
            assert isinstance(spec.as_dict()[job], list if dense else dict)

    @given(clusters())
    def test_a_spec_is_not_changed_through_what_it_gives(self, cluster: dict[str, dict[int, str]]) -> None:
        spec = jd.ClusterSpec(cluster)
        for tasks in spec.as_dict().values():
            tasks.clear()
        assert spec == cluster


class TestForms:
    def test_a_definition_of_another_library_is_understood(self) -> None:
        like: Any = SimpleNamespace(job=[SimpleNamespace(name="worker", tasks={0: "a:1"})])
        assert jd.ClusterSpec(like) == {"worker": ["a:1"]}

    def test_the_definition_lists_jobs_by_name(self) -> None:
        assert jd.ClusterSpec(TWO).as_cluster_def() == ClusterDef(
            (JobDef("ps", {0: "c:3"}), JobDef("worker", {0: "a:1", 1: "b:2"}))
        )

    def test_a_list_equals_the_dict_of_its_indices(self) -> None:
        assert jd.ClusterSpec(TWO) == {"worker": {1: "b:2", 0: "a:1"}, "ps": ("c:3",)}
        assert jd.ClusterSpec(TWO) != {"worker": ["a:1"]}
        assert jd.ClusterSpec(TWO) != {"worker": 3}
        assert jd.ClusterSpec(TWO) != 3

    def test_specs_have_no_hash_as_they_equal_dicts(self) -> None:
        with pytest.raises(TypeError, match="unhashable"):
            hash(jd.ClusterSpec(TWO))


class TestErrors:
    @pytest.mark.parametrize(
        ("cluster", "says"),
        [
            ("a:1", r"described by a dict of jobs, not by 'a:1' of type str\. HINT: write jd.ClusterSpec"),
            ({"worker": "a:1"}, r"tasks of job 'worker' are a list .* not 'a:1' of type str\. HINT"),
            ({"worker": [1]}, r"the address of worker 0 is a string, not 1 of type int\. HINT"),
            ({1: ["a:1"]}, r"the name of a job is a string, not 1 of type int\. HINT"),
        ],
    )
    def test_a_wrong_type_is_shown(self, cluster: Any, says: str) -> None:
        with pytest.raises(ArgumentTypeError, match=says):
            jd.ClusterSpec(cluster)

    @pytest.mark.parametrize(
        ("cluster", "says"),
        [
            ({"worker": {-1: "a:1"}}, r"-1 is no index of a task of job 'worker'"),
            ({"worker": {"x": "a:1"}}, r"'x' is no index of a task of job 'worker'"),
            ({"worker": {"1": "a:1", "01": "b:2"}}, r"job 'worker' has two tasks 1: 'a:1' and 'b:2'"),
            ({"worker": ["a:1"], "ps": ["b:2", "a:1"]}, r"worker 0 and ps 1 have the same address 'a:1'.*HINT"),
        ],
    )
    def test_a_cluster_that_cannot_be_is_refused(self, cluster: Any, says: str) -> None:
        with pytest.raises(ClusterSpecError, match=says):
            jd.ClusterSpec(cluster)

    def test_ports_that_the_system_chooses_are_no_duplicates(self) -> None:
        assert jd.ClusterSpec({"worker": ["localhost:0", "localhost:0"]}).num_tasks("worker") == 2

    def test_an_unknown_job_or_task_is_answered_with_those_that_exist(self) -> None:
        spec = jd.ClusterSpec(TWO)
        for ask in (spec.num_tasks, spec.task_indices, spec.job_tasks):
            with pytest.raises(
                ClusterSpecError, match=r"no job 'chief' in the cluster, whose jobs are \['worker', 'ps'\]"
            ):
                ask("chief")
        with pytest.raises(ClusterSpecError, match=r"no task 2 in job 'worker', whose tasks are \[0, 1\]"):
            spec.task_address("worker", 2)


class TestDeviceFilters:
    def test_filters_are_kept_by_task(self) -> None:
        filters = jd.ClusterDeviceFilters()
        filters.set_device_filters("worker", 1, ["/job:ps"])
        filters.set_device_filters("worker", 1, ["/job:ps/task:0", "/job:chief"])
        filters.set_device_filters("ps", 0, ("/job:worker",))
        assert filters.as_dict() == {"worker": {1: ["/job:ps/task:0", "/job:chief"]}, "ps": {0: ["/job:worker"]}}

    @pytest.mark.parametrize("filters", ["/job:ps", [3]])
    def test_a_filter_that_is_no_list_of_strings_is_refused(self, filters: Any) -> None:
        with pytest.raises(ArgumentTypeError, match=r"HINT: write \['/job:ps'\]"):
            jd.ClusterDeviceFilters().set_device_filters("worker", 0, filters)
