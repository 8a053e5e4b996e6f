"""A process as a task of a cluster."""

from typing import Any

import jax
import psutil
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.parameter_servers.engines.server import ServerDef
from jaxtribute._src.core.cluster import runtime
from jaxtribute.errors import ArgumentTypeError, ClusterError, ClusterSpecError, ConfigError

TWO = {"worker": ["127.0.0.1:1111", "127.0.0.1:2222"]}
ALL = TWO | {"evaluator": ["127.0.0.1:3333"]}


class TestDescription:
    def test_a_server_is_its_task(self) -> None:
        server = jd.Server(jd.ClusterSpec(TWO), "worker", 1, start=False)
        assert server.target == "grpc://127.0.0.1:2222"
        assert server.server_def == ServerDef(jd.ClusterSpec(TWO).as_cluster_def(), "worker", 1)

    def test_what_is_clear_need_not_be_said(self) -> None:
        server = jd.Server({"worker": {3: "127.0.0.1:1111"}}, protocol="grpc+verbs", config="c", start=False)
        task = server.server_def
        assert (task.job_name, task.task_index, task.protocol) == ("worker", 3, "grpc+verbs")
        assert task.default_session_config == "c"

    def test_a_definition_is_taken_with_what_is_changed(self) -> None:
        first = jd.Server(TWO, task_index=0, config="c", start=False).server_def
        assert jd.Server(first, start=False).server_def == first
        other = jd.Server(first, task_index=1, protocol="ssl", start=False)
        assert other.target == "ssl://127.0.0.1:2222"
        assert other.server_def.default_session_config == "c"

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ((ALL,), r"the cluster has the jobs \['worker', 'evaluator'\], and job_name does not say .* HINT: pass it"),
            ((TWO,), r"the cluster has the tasks \[0, 1\] of job 'worker', and task_index does not say"),
            ((TWO, "chief", 0), r"no job 'chief'"),
            ((TWO, "worker", 2), r"no task 2 in job 'worker'"),
        ],
    )
    def test_a_task_that_is_not_clear_is_an_error(self, arguments: tuple[Any, ...], says: str) -> None:
        with pytest.raises(ClusterSpecError, match=says):
            jd.Server(*arguments)

    def test_what_describes_no_cluster_is_shown(self) -> None:
        wrong: Any = 3
        with pytest.raises(ArgumentTypeError, match="not by 3 of type int"):
            jd.Server(wrong)


class TestAlone:
    def test_a_local_server_is_started_and_joined_at_once(self) -> None:
        server = jd.Server.create_local_server()
        server.join()
        assert server.target == "grpc://localhost:0"
        assert runtime.Cluster.current() is None

    @pytest.mark.parametrize(("job", "cluster"), [("evaluator", ALL), ("worker", {"worker": ["127.0.0.1:1111"]})])
    def test_who_trains_with_nobody_joins_nothing(self, job: str, cluster: dict[str, list[str]]) -> None:
        jd.Server(cluster, job).join()
        assert runtime.Cluster.current() is None

    def test_only_a_started_server_can_be_joined(self) -> None:
        server = jd.Server.create_local_server(start=False)
        with pytest.raises(ClusterError, match=r"'grpc://localhost:0' was not started\. HINT: call start\(\)"):
            server.join()
        server.start()
        server.join()

    def test_a_process_where_jax_runs_is_too_late(self) -> None:
        jax.devices()
        with pytest.raises(ConfigError, match=r"worker 1 \(127\.0\.0\.1:2222\) cannot join its cluster"):
            jd.Server(TWO, task_index=1)


def serve_and_join() -> tuple[str, int, set[str]]:
    """A worker that starts a server twice, which is once, and joins it; the hosts where it listens."""
    resolver = jd.cluster_resolver.TFConfigClusterResolver()
    job, index = resolver.own_task()
    server = jd.Server(resolver.cluster_spec(), job, index)
    cluster = runtime.Cluster.current()
    server.start()
    assert runtime.Cluster.current() is cluster
    processes = jax.process_count()
    ports = [one.laddr for one in psutil.Process().net_connections() if one.status == psutil.CONN_LISTEN]
    server.join()
    return server.target, processes, {port.ip.removeprefix("::ffff:") for port in ports}


@pytest.mark.slow
def test_workers_meet_and_wait_for_each_other() -> None:
    found = jd.testing.run_multi_process(serve_and_join, workers=2)
    assert len({target for target, _, _ in found}) == 2
    assert [processes for _, processes, _ in found] == [2, 2]
    assert [listening for _, _, listening in found] == [{"127.0.0.1"}, {"127.0.0.1"}]
