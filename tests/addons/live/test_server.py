"""The page's server: who may look, and what hostile names do to it."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import jaxtribute as jd
import live_runs
from jaxtribute._src.addons.cli.main import main
from jaxtribute._src.addons.live import server
from jaxtribute._src.addons.live.state import Run
from jaxtribute._src.addons.live.terminal import view
from jaxtribute._src.addons.live.worker import Event
from live_runs import START

testclient: Any = pytest.importorskip("starlette.testclient")

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[2J\u202e\ud800&<b>"


def client(run: Path, host: str = "127.0.0.1", token: str | None = None, **kwargs: Any) -> Any:
    """A visitor of the page, without a socket."""
    application = server.application(Run(run), host, token)
    return testclient.TestClient(application, base_url=kwargs.pop("base_url", "http://127.0.0.1:8631"), **kwargs)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    live_runs.running(tmp_path / "run", 2, 20)
    return tmp_path / "run"


def test_the_page_and_its_state(run: Path) -> None:
    visitor = client(run)
    for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")):
        answer = visitor.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(kind)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in answer.text
    state = visitor.get("/state.json").json()
    assert len(state["workers"]) == 2
    told = dict(line.rsplit(" ", 1) for line in visitor.get("/metrics").text.splitlines() if line[0] != "#")
    assert float(told["jaxtribute_steps{}"]) == state["steps"]
    assert float(told['jaxtribute_part_seconds{part="step"}']) == pytest.approx(state["goodput"]["step"], rel=0.1)
    assert told['jaxtribute_events{kind="failure"}'] == "0"
    for name, expected in zip(("", "limit_"), state["workers"][1]["memory"][0], strict=True):
        assert float(told[f'jaxtribute_device_memory_{name}bytes{{worker="1",device="0"}}']) == expected > 0
    assert visitor.get("/healthz").text == "ok"
    assert visitor.get("/../job.jsonl").status_code == 404
    assert visitor.get("/job.jsonl").status_code == 404


@pytest.mark.parametrize("method", ["post", "put", "delete", "patch"])
def test_it_only_reads(run: Path, method: str) -> None:
    visitor = client(run)
    for path in ("/", "/state.json"):
        assert getattr(visitor, method)(path).status_code == 405


def test_no_other_name_is_answered(run: Path) -> None:
    for name, status in (("evil.example", 421), ("localhost:1", 200), ("[::1]:8631", 200), ("127.0.0.1", 200)):
        assert client(run).get("/state.json", headers={"host": name}).status_code == status


def test_beyond_this_machine_a_token_is_needed(run: Path) -> None:
    with pytest.raises(jd.errors.ArgumentError, match=r"0.0.0.0 would show the run to the network. HINT"):
        client(run, "0.0.0.0")
    with pytest.raises(jd.errors.ArgumentError, match=r"5 letters, and needs 16 at least. HINT"):
        client(run, "0.0.0.0", "short")
    secret = "a" * 31 + "ä"
    visitor = client(run, "0.0.0.0", secret, base_url="http://node-7:8631")
    for path in ("/", "/state.json", "/state.json?token=", "/?token=" + "a" * 32):
        answer = visitor.get(path)
        assert answer.status_code == 401
        assert "worker" not in answer.text
    assert visitor.get("/state.json", params={"token": secret}).status_code == 200
    assert visitor.get("/", params={"token": secret}).status_code == 200
    bearer = {"authorization": "Bearer " + "a" * 40}
    assert visitor.get("/state.json", headers=bearer).status_code == 401
    assert [visitor.get(path).status_code for path in ("/metrics", "/healthz")] == [401, 200]


def test_what_is_loopback() -> None:
    for host in ("localhost", "127.0.0.1", "127.1.2.3", "::1"):
        assert server.is_loopback(host)
    for host in ("", "0.0.0.0", "::", "example.org", "192.168.0.1", "localhost.example.org"):
        assert not server.is_loopback(host)


def test_hostile_names_are_data(tmp_path: Path) -> None:
    now = live_runs.running(tmp_path, 1, 20, host=HOSTILE, program=HOSTILE)
    worker = live_runs.Writer(tmp_path, 0)
    worker.start(START, host=HOSTILE, program=HOSTILE)
    record = worker.window(START, 1, {"step": 1.0}) | {"m": {HOSTILE: 1.0, "good": float("nan")}}
    worker.lines.append(json.dumps(record))
    worker.add("fail", START + 2, trace=HOSTILE)
    worker.now(now, HOSTILE, START, where=HOSTILE, **{"for": HOSTILE})
    worker.close()
    answer = client(tmp_path).get("/state.json")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/json")
    state = json.loads(answer.text)
    assert state["workers"][0]["host"] == HOSTILE
    assert HOSTILE in state["metrics"]
    for line in client(tmp_path).get("/metrics").text.removesuffix("\n").split("\n"):
        assert re.fullmatch(r'# TYPE \w+ gauge|\w+\{(\w+="([^"\\]|\\.)*",?)*\} [-+.\w]+', line), line


def test_the_commands_refuse_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("top", "serve"):
        assert main([command, str(tmp_path / "absent")]) == 2
        assert f"jaxtribute {command}: there is no folder" in capsys.readouterr().err
    live_runs.running(tmp_path / "run", 1, 5)
    assert main(["serve", str(tmp_path / "run"), "--host", "0.0.0.0"]) == 2
    assert "give --token-file too" in capsys.readouterr().err
    assert main(["serve", str(tmp_path / "run"), "--token-file", str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_without_the_library(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "find_spec", lambda name: None)
    with pytest.raises(jd.errors.MissingLibraryError, match=r"HINT: pip install -e '\.\[live\]'"):
        client(run)


def test_failures_stand_before_the_saves_that_came_after_them(tmp_path: Path) -> None:
    now = live_runs.running(tmp_path, 1, 5)
    run = Run(tmp_path)
    run.state(now)
    happened = [Event(now + i, "save", 0, f"save {i}") for i in range(300)]
    happened[7:7] = [Event(now + 6.5, "failure", 0, "ValueError: boom")]
    run._job.events[:] = happened  # pyright: ignore[reportPrivateUsage]
    state = run.state(now)
    times = [one["time"] for one in state["events"]]
    assert len(times) == 100
    assert times == sorted(times)
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(view(state, 120))
    lately = console.export_text().partition("lately")[2].splitlines()[1:]
    assert [line.split()[1] for line in lately] == ["failure", *["save"] * 5]
    assert [line.split()[3:] for line in lately[1:]] == [["0:", "save", str(i)] for i in range(295, 300)]


def test_top(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    live_runs.running(tmp_path, 2, 30, host=HOSTILE)
    assert main(["top", str(tmp_path), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "training steps" in shown
    assert "\x1b[2J" not in shown
    # Through a pipe it prints once and ends, without being told.
    assert main(["top", str(tmp_path)]) == 0
    assert "training steps" in capsys.readouterr().out
    assert main(["top", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] > 500
