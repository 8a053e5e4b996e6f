"""Parameter servers on the page: what they tell, and how that is read."""

import io
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import jaxtribute as jd
import live_runs
from jaxtribute._src.addons.launcher.environment import RUN
from jaxtribute._src.addons.live import starting
from jaxtribute._src.addons.live.starting import start_recording
from jaxtribute._src.addons.live.state import Run
from jaxtribute._src.addons.live.terminal import view
from jaxtribute._src.addons.parameter_servers.server.staleness import Staleness
from parameter_servers.clusters import coordinated
from processes import run_python


def test_changes_by_others_are_counted_and_not_the_own_ones() -> None:
    staleness = Staleness()
    assert staleness.pulled(0, [(7, 0, 3)]) == 0  # what was never pulled lacks nothing
    staleness.changed(0, [["add", 7, 1], ["optimizer", 99, 1]])
    assert staleness.pulled(0, [(7, 3, 9)]) == 4
    assert staleness.pulled(0, [(7, 9, 9)]) == 0
    staleness.note(4)
    staleness.note(0)
    assert staleness.figures() == {"pulls": 2, "behind": 4, "behind_now": 0, "most_behind": 4}


def test_servers_workers_and_the_queue_are_shown(tmp_path: Path) -> None:
    now = live_runs.with_servers(tmp_path)
    state = Run(tmp_path).state(now)
    json.dumps(state, allow_nan=False)
    found = state["parameter_servers"]
    assert found["coordinator"]["waiting"] == 900 - 7 * 120
    assert found["coordinator"]["absent"] == [3]
    assert [one["name"] for one in found["servers"]] == ["ps 0", "ps 1"]
    assert [one["bytes"] for one in found["servers"]] == [3 << 30, 2 << 30]
    assert found["servers"][0]["requests_rate"] == pytest.approx(300, rel=0.01)
    assert found["servers"][0]["busy_rate"] == pytest.approx(0.4, rel=0.01)
    assert found["servers"][1]["restarts"] == 1
    assert [one["stale"] for one in found["workers"]] == [3.0] * 4
    assert found["queue"][0][1] > found["queue"][-1][1]
    assert [one["words"] for one in state["workers"]] == [
        "runs step",
        "runs step",
        "waits for the servers",
        "not there, as the coordinator says",
    ]
    assert any(event["text"] == "parameter server 1 starts again" for event in state["events"])
    # Workers that do not wait for each other hold nobody up.
    assert state["held"] == []
    for one in state["workers"]:
        assert sum(one["bar"].values()) == pytest.approx(state["wall"], rel=0.01)
        assert one["bar"]["collective"] == pytest.approx(0.25 * 118, rel=0.05)


def test_the_terminal_shows_them(tmp_path: Path) -> None:
    now = live_runs.with_servers(tmp_path)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(view(Run(tmp_path).state(now), 160))
    shown = console.export_text()
    assert "60 closures queued" in shown
    assert "3.0 GiB" in shown or "3.2 GB" in shown
    assert "waits for the servers" in shown


def test_a_run_without_servers_has_none(tmp_path: Path) -> None:
    now = live_runs.running(tmp_path, 2, 5)
    assert Run(tmp_path).state(now)["parameter_servers"] is None


def test_tasks_tell_their_figures(tmp_path: Path) -> None:
    """Threads of one process, whose recorder sees them all."""
    recorder = start_recording(tmp_path, 0, "worker")
    try:
        with coordinated(servers=2, workers=2) as coordinator:
            with coordinator.strategy.scope():
                table = jd.Variable(np.ones((100, 4), np.float32), name="table")

            @jd.function
            def step() -> Any:
                table.assign_add(np.ones((100, 4), np.float32))
                return table.read_value().sum()

            for _ in range(20):
                coordinator.schedule(step)
            coordinator.join()
            found = recorder.noted.figures()["tasks"]
    finally:
        recorder.close()
    assert set(found) == {"coordinator", "ps 0", "ps 1", "worker 0", "worker 1"}
    assert found["coordinator"] == {"waiting": 0, "running": 0, "done": 20, "failed": 0, "absent": []}
    assert found["ps 0"]["bytes"] + found["ps 1"]["bytes"] == 100 * 4 * 4
    total = Counter(found["worker 0"]) + Counter(found["worker 1"])
    assert total["pushes"] == 20
    # Each worker lacks the other one's changes, and no others.
    assert total["behind"] <= 20
    assert total["most_behind"] <= 20
    assert not recorder.noted.figures()


SERVER = """
import os, signal, sys, threading, time
import numpy as np
from jaxtribute._src.core.folders import Folder
from jaxtribute._src.addons.messaging.transport import TaskSettings
from jaxtribute._src.core.observers import TASK
from jaxtribute._src.addons.parameter_servers.server.client import Client
from jaxtribute._src.addons.parameter_servers.server.server_task import ServerTask

assert "JAXTRIBUTE_RUN" not in os.environ
task = ServerTask(1, TaskSettings(Folder().path))

def run():
    with TASK.during(task, "ps 1"):
        task.run()

threading.Thread(target=run, name="server", daemon=True).start()
client = Client(None, 20.0)
client.connect([task.endpoint], 1)
client.call({0: ({"t": "activate", "epoch": 1}, [])})
client.call({0: ({"t": "create", "keys": [7]}, [np.ones((100, 4), np.float32)])})
end, now = time.monotonic() + 60, sys.argv[1] + "/ps-00001.now.json"
while time.monotonic() < end and not (os.path.exists(now) and b'"bytes":1600' in open(now, "rb").read()):
    client.call({0: ({"t": "sizes"}, [])})
    time.sleep(0.1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_server_that_is_killed_has_told_what_it_held(tmp_path: Path) -> None:
    for _ in range(2):
        environment = {"JAXTRIBUTE_RUN": str(tmp_path), "JAXTRIBUTE_RUN_TASK": "ps 1"}
        run_python(
            f"import warnings\nwarnings.simplefilter('ignore')\n{SERVER}", str(tmp_path), env=environment, status=-9
        )
    assert {path.name for path in tmp_path.iterdir()} == {"ps-00001.jsonl", "ps-00001.now.json"}
    state = Run(tmp_path).state()
    (server,) = state["parameter_servers"]["servers"]
    assert (server["name"], server["bytes"], server["shards"], server["restarts"]) == ("ps 1", 1600, 1, 1)
    assert server["requests"] > 2
    assert any(event["text"] == "parameter server 1 starts again" for event in state["events"])


@pytest.mark.slow  # Ray's import may start a process
def test_tasks_of_a_recorded_coordinator_are_told_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_CLIENT_MODE", "0")  # which Ray's import sets
    variables = pytest.importorskip("jaxtribute._src.addons.parameter_servers.engines.ray_engine")._variables
    assert "JAXTRIBUTE_RUN" not in variables("worker", 3)
    recorder = start_recording(tmp_path, 0, "worker")
    try:
        found = variables("worker", 3)
    finally:
        recorder.close()
    assert found["JAXTRIBUTE_RUN"] == str(tmp_path)
    assert found["JAXTRIBUTE_RUN_TASK"] == "worker 3"


def test_places_for_servers_are_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(starting, "record_run", asked.append)
    for job, recorded in (("ps", False), ("worker", False), ("chief", True)):
        task = {"cluster": {"chief": ["a"], "ps": ["b"], "worker": ["c"]}, "task": {"type": job, "index": 0}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(task))
        monkeypatch.setenv(RUN, str(tmp_path))
        starting.apply_environment()
        assert RUN not in os.environ
        assert bool(asked) is recorded
