"""Processes that Ray starts: some are killed while they train; programs as TensorFlow's users start them."""

import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxtribute._src.addons.cli.main import main
from jaxtribute._src.addons.launcher.node import LOOPBACK
from jaxtribute._src.addons.live.state import Run
from jaxtribute._src.addons.parameter_servers.engines import ray_engine, ray_node
from jaxtribute._src.addons.parameter_servers.engines.server import Server
from jaxtribute._src.addons.parameter_servers.scheduling import starting
from jaxtribute._src.addons.parameter_servers.scheduling.starting import tasks_of
from jaxtribute.errors import ArgumentError, ClusterError, DeadlineError
from processes import free_ports, run_python
from samples import ALL_CASES

HERE = Path(__file__).parents[1]
KILLED = Path(__file__).parents[3] / "support" / "kill_program.py"
CLUSTER = {"chief": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"], "worker": ["127.0.0.1:3"]}


def last_line(output: str) -> dict[str, Any]:
    return json.loads(output.strip().split("\n")[-1].removeprefix("[0] "))


@pytest.mark.ray
@pytest.mark.skipif(not ALL_CASES, reason="the test below has a process a task, and kills chief and server")
def test_one_process_a_task_trains_on_though_some_are_killed() -> None:
    """The start-up of TensorFlow's programs: each process is told by TF_CONFIG who it is."""
    jobs = {job: [f"{LOOPBACK}:{port}"] for job, port in zip(CLUSTER, free_ports(3), strict=True)}

    def run(job: str) -> str:
        task = json.dumps({"cluster": jobs, "task": {"type": job, "index": 0}})
        arguments = ("--workers", "1", "--servers", "1", "--steps", "100")
        return run_python(HERE / "chaos.py", *arguments, env={"TF_CONFIG": task}, timeout=300)

    with ThreadPoolExecutor(len(jobs)) as pool:
        tasks = {job: pool.submit(run, job) for job in jobs}
    failed = [f"{job}: {error}" for job, task in tasks.items() if (error := task.exception())]
    assert not failed, "\n\n".join(failed)
    result = last_line(tasks["chief"].result())
    assert (result["workers"], result["kills"], result["restored"]) == (1, 2, 1)
    assert result["counted"] == result["steps"]


@pytest.mark.ray
def test_launch_starts_a_chief_that_was_killed_again_from_what_it_saved(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its server is killed after that; the tasks are processes as TF_CONFIG tells them."""
    command = ["launch", "--ps", "1", "--workers", "1", "--max-restarts", "1", str(HERE / "ps_program.py")]
    assert main([*command, str(tmp_path)]) == 0
    result = last_line(capfd.readouterr().out)
    assert (result["begun"], result["saved"], result["restored"]) == (10, 20, 20)
    assert (result["count"], result["row"]) == (25, 26.0)
    assert result["saves"] == ["save-000001", "save-000002"]
    assert not result["remote"]


@pytest.mark.ray
def test_bad_functions_on_real_processes_and_a_long_folder_of_temporary_files(tmp_path: Path) -> None:
    """A worker that ends or hangs, odd text and classes; all listen on loopback, are recorded, and leave nothing."""
    long, run = tmp_path / ("x" * 60), tmp_path / "run"
    long.mkdir()
    around = {"TMPDIR": str(long), "JAXTRIBUTE_RUN": str(run)}
    result = last_line(run_python(HERE / "ray_program.py", env=around, timeout=300))
    assert result["odd"]
    assert result["lower"] == 0, "Ray lets its processes wait for all others of the machine"
    assert result["set"] == [1, 2]
    assert "cannot be read here: SystemExit: from" in result["unpicklable"]
    assert "exits does not run again: 2 processes have ended" in result["exits"]
    assert "stuck has run for" in result["stuck"]
    assert "in stuck" in result["stuck"], "its stack is missing"
    assert result["count"] == 2
    assert {address.removeprefix("::ffff:") for address in result["listening"]} == {LOOPBACK}
    assert not result["folder"].startswith(str(long))
    assert not result["left"]
    assert {path.stem for path in run.glob("*.jsonl")} == {"worker-00000", "ps-00000", "ps-worker-00000"}
    state = Run(run).state()
    (server,), (worker,) = state["parameter_servers"]["servers"], state["workers"]
    assert state["parameter_servers"]["coordinator"]["done"] > 0
    assert server["requests"] > 0
    assert worker["starts"] == 4  # two processes have ended, and one was stuck
    assert [event["text"] for event in state["events"]] == ["worker 0 starts again"] * 3
    assert worker["bar"]["recovery"] > 0.1
    assert sum(worker["bar"].values()) == pytest.approx(state["wall"], rel=0.01)


def test_a_server_joins_the_chief_or_says_why_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match="has no chief for ps 0 to join"):
        Server({"ps": ["127.0.0.1:2"], "worker": ["127.0.0.1:3"]}, "ps", 0).join()
    Server(CLUSTER, "chief", 0).join()  # it has nobody to wait for
    monkeypatch.setattr(ray_node, "START_S", 0.1)
    monkeypatch.setattr(ray_node, "_POLL_S", 0.01)
    with pytest.raises(DeadlineError, match=r"the chief at 127\.0\.0\.1:1 has not started"):
        Server(CLUSTER, "worker", 0).join()


class Pretended:
    """A Ray node that is none: what `RayNode` gets to start in the tests below."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
        monkeypatch.setattr(ray_node, "make_token", lambda: None)
        monkeypatch.setattr(ray_node, "_POLL_S", 0.02)
        monkeypatch.setattr(ray_node, "_GONE_S", 0.1)
        monkeypatch.setattr(ray_node, "_COMMAND", [sys.executable, "-I", "-S", "-c", code])


LOSES = """
case "$JAXTRIBUTE_RESTART $TF_CONFIG" in
"0 "*'"index": 1'*) (until [ -e "$0/checkpoints/ckpt-1" ]; do sleep 0.1; done; kill -9 $PPID) & ;;
esac
exec "$@"
"""
"""A worker's program; once worker 1 of the first start has saved, its process of Ray's is killed, and so it is."""


@pytest.mark.ray
def test_a_synchronous_job_on_a_ray_cluster_that_runs_loses_a_worker_and_nothing_else(tmp_path: Path) -> None:
    # A port that Ray would keep for its workers.
    address = f"{LOOPBACK}:{next(port for port in range(17000, 19999) if _is_free(port))}"
    program = ["sh", "-c", LOSES, str(tmp_path), sys.executable, str(KILLED), str(tmp_path), "2", "1", "192"]
    stalls = json.dumps([{"kind": "stall", "rank": 1, "step": 3}])  # until then it has saved twice
    arguments = ["launch", "--ray", address, "--workers", "2", "--resources", "CPU=0.5", "--max-restarts", "1"]
    launch = "from jaxtribute._src.addons.cli.main import main; import sys; sys.exit(main(sys.argv[1:]))"
    node = ray_node.start_head(address)
    try:
        around = {"RAY_AUTH_MODE": "token", "JAXTRIBUTE_FAULTS": stalls, **ray_node.MANNERS}
        said = run_python(launch, *arguments, *program, devices=1, timeout=400, env=around)
    finally:
        node.stop()
    assert "has lost worker 1's process on Ray" in said
    result = np.load(tmp_path / "result.npz")
    assert (result["seen:0"] == 1).all(), said
    assert result["step:0"] == 6


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) != 0


@pytest.mark.slow
def test_a_node_that_ends_tells_what_ray_said(monkeypatch: pytest.MonkeyPatch) -> None:
    Pretended(monkeypatch, "print('no such port'); raise SystemExit(1)")
    with pytest.raises(ClusterError, match=r"could not be started.*no such port"):
        ray_node.start_head("127.0.0.1:1")
    monkeypatch.setattr(ray_node, "START_S", 0.2)
    Pretended(monkeypatch, "import time; time.sleep(60)")
    with pytest.raises(DeadlineError, match=r"Ray on 127\.0\.0\.1:1 has not answered"):
        ray_node.start_head("127.0.0.1:1")


@pytest.mark.slow
def test_a_task_offers_its_place_until_the_chief_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    Pretended(monkeypatch, "import time; time.sleep(60)")
    with socket.create_server(("127.0.0.1", 0)) as chief:
        cluster = {**CLUSTER, "chief": [f"127.0.0.1:{chief.getsockname()[1]}"]}
        answers = ray_node._answers  # pyright: ignore[reportPrivateUsage]
        calls: list[int] = []

        def then_gone(host: str, port: int) -> bool:
            calls.append(port)
            return len(calls) < 3 and answers(host, port)

        monkeypatch.setattr(ray_node, "_answers", then_gone)
        Server(cluster, "worker", 0).join()
        assert len(calls) > 3
        monkeypatch.setattr(ray_node, "_answers", lambda *_: True)
        Pretended(monkeypatch, "print('evicted')")
        with pytest.raises(ClusterError, match=r"Ray has ended on 127\.0\.0\.1:3.*evicted"):
            Server(cluster, "worker", 0).join()


def test_a_ray_cluster_that_the_environment_names_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def pretend(address: Any, folder: str, patience_s: float) -> None:
        given.append(address)
        raise ClusterError("enough")

    monkeypatch.setattr(ray_engine, "connect", pretend)
    monkeypatch.setattr(starting, "prepare_ray", lambda: None)
    monkeypatch.setenv("RAY_ADDRESS", "")
    for named, address in (("", None), ("192.0.2.1:6379", None), ("192.0.2.1:6379", "auto")):
        monkeypatch.setenv("RAY_ADDRESS", named)
        with pytest.raises(ClusterError, match="enough"):
            starting.start_cluster({"ps": 1, "worker": 1}, address)
    assert given == [None, "192.0.2.1:6379", "auto"]


def test_a_ray_that_cannot_be_started_or_joined_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("nobody there")

    monkeypatch.setattr("ray.init", fail)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    with pytest.raises(ClusterError, match=r"192\.0\.2\.1:1 cannot be joined: nobody there\. HINT"):
        ray_engine.connect("192.0.2.1:1", "", 0.0)
    with pytest.raises(ClusterError, match=r"could not be started on this machine: ConnectionError: nobody.*HINT"):
        ray_engine.connect(None, "/nonexistent", 0.0)


@pytest.mark.parametrize("tries", [2, 99])
def test_ray_that_is_slow_to_start_is_started_again(tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a start that was given up nothing is left."""
    started, ended = list[str](), list[dict[str, bool]]()

    class Node:
        def __init__(self) -> None:
            started.append("")
            if len(started) < tries:
                raise Exception("The current node timed out during startup.")

        def kill_all_processes(self, **how: bool) -> None:
            ended.append(how)

    monkeypatch.setattr("ray.init", lambda **_: Node())
    monkeypatch.setattr("ray.shutdown", lambda: None)
    if tries == 2:
        ray_engine.connect(None, "/nowhere", 0.0)
    else:
        with pytest.raises(ClusterError, match=r"timed out during startup.*HINT"):
            ray_engine.connect(None, "/nowhere", 0.0)
    assert (len(started), len(ended)) == ((2, 1) if tries == 2 else (3, 3))
    assert ended[0] == {"check_alive": False, "allow_graceful": False}


def test_a_cluster_needs_servers_and_workers() -> None:
    assert tasks_of({"ps": 1, "worker": ["a", "b"]}) == (1, 2)
    with pytest.raises(ArgumentError, match="0 parameter servers and 1 workers"):
        tasks_of({"worker": 1})


@pytest.mark.parametrize("address", ["127.0.0.1:", "localhost", "", "127.0.0.1:70000", "127.0.0.1:-1", "127.0.0.1:a"])
def test_an_address_without_a_port_is_named(address: str) -> None:
    with pytest.raises(
        ClusterError, match=rf"the address '{address}' of the cluster names no port. HINT: write host:port"
    ):
        ray_node.start_head(address)


def test_a_chief_needs_an_address_of_its_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for bad, told in {
            address: "Address already in use",
            "127.0.0.1:0": "has port 0",
            "192.0.2.1:99": "Cannot assign",
        }.items():
            with pytest.raises(ClusterError, match=rf"the chief's address {bad} .*{told}.*HINT"):
                ray_node.start_head(bad)


@pytest.mark.parametrize("address", ["nobody.invalid:1", "nobody..invalid:1", f"{'a' * 64}.invalid:1"])
def test_a_host_that_nobody_knows_is_named(address: str) -> None:
    with pytest.raises(ClusterError, match=rf"the address '{address}' .*does not know.*HINT"):
        ray_node.start_head(address)
