"""Folders of runs that are damaged, of a later version, or not to be read: a sentence, and what is whole is shown."""

import contextlib
import io
import json
import os
import random
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import live_runs
from jaxtribute._src.addons.cli.main import main
from jaxtribute._src.addons.live import files
from jaxtribute._src.addons.live.files import now_file, parsed, worker_file, write_now
from jaxtribute._src.addons.live.server import _as_json  # pyright: ignore[reportPrivateUsage]
from jaxtribute._src.addons.live.starting import record_run
from jaxtribute._src.addons.live.state import Run
from jaxtribute._src.addons.live.terminal import view
from jaxtribute.errors import ArgumentError, ConfigError
from live_runs import START

NUMBERS = [-1, 0, 1e308, float("nan"), float("inf"), -float("inf"), 10**400, 1.5, -1e18]
ODD: list[Any] = [*NUMBERS, None, True, "", "x\x00\u202e\x1b[2J", "\ud800", [], {}, [[]], {"a": {}}, [1, "2", None]]


def changed(value: Any, chance: random.Random) -> Any:
    """The value with one piece of it made odd, or taken away."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        name = chance.choice(list(value))
        rest = {one: piece for one, piece in value.items() if one != name}
        return rest if chance.random() < 0.15 else rest | {name: changed(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.6:
        place = chance.randrange(len(value))
        return [*value[:place], changed(value[place], chance), *value[place + 1 :]]
    return chance.choice(ODD)


def damage(path: Path, chance: random.Random) -> None:
    """Cuts a line of a file of records, mixes its lines, or makes a value in one odd."""
    lines = path.read_bytes().split(b"\n")
    place, kind = chance.randrange(len(lines)), chance.random()
    if kind < 0.15:
        lines[place] = lines[place][: len(lines[place]) // 2]
    elif kind < 0.3:
        chance.shuffle(lines)
    elif kind < 0.4:
        lines[place] = chance.randbytes(50)
    else:
        record = parsed(lines[place])
        lines[place] = json.dumps(changed(record, chance)).encode()
    path.write_bytes(b"\n".join(lines))


def shown(run: Run, now: float) -> str:
    """The run as the terminal shows it; the page's data is made, too."""
    state = run.state(now)
    _as_json(state)
    console = Console(file=io.StringIO(), width=160)
    console.print(view(state, 160))
    return str(console.file.getvalue())  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    "written",
    [
        lambda folder: live_runs.running(folder, 2, 12),
        lambda folder: live_runs.with_servers(folder, seconds=12),
        lambda folder: live_runs.eventful(folder, workers=2, seconds=960),
    ],
    ids=["running", "servers", "eventful"],
)
def test_damaged_records_are_left_out(written: Callable[[Path], float], tmp_path: Path) -> None:
    now = written(tmp_path / "whole")
    for seed in range(12):
        chance = random.Random(seed)
        folder = tmp_path / str(seed)
        shutil.copytree(tmp_path / "whole", folder)
        for path in sorted(folder.glob("*.jsonl")):
            for _ in range(chance.randrange(3)):
                damage(path, chance)
        write_now(now_file(folder, 0), changed({"t": now, "since": now, "window": {"t": now, "s": 1, "b": {}}}, chance))
        run = Run(folder)
        for moment in (now, now + 100, now - 50):
            shown(run, moment)


@pytest.mark.parametrize("value", NUMBERS)
@pytest.mark.parametrize("name", ["t", "s", "n", "st", "x", "rss", "pos"])
def test_odd_numbers(name: str, value: float, tmp_path: Path) -> None:
    now = live_runs.running(tmp_path, 1, 5)
    with worker_file(tmp_path, 0).open("a") as file:
        file.write(
            json.dumps({"k": "w", "t": START + 5, "s": 1, "b": {"step": 1.0}, "m": {"loss": value}, name: value})
        )
        file.write("\n")
    shown(Run(tmp_path), now)


def test_a_clock_that_was_set_back(tmp_path: Path) -> None:
    now = live_runs.running(tmp_path, 2, 20)
    worker = live_runs.Writer(tmp_path, 1)
    worker.start(START)
    worker.train(START + 10, 10)
    worker.train(START, 10)  # told later, with earlier moments
    worker.close()
    state = Run(tmp_path).state(now)
    assert state["workers"][1]["bar"]["step"] == pytest.approx(20, abs=1)


def test_a_cut_line_of_a_worker_that_was_killed(tmp_path: Path) -> None:
    now = live_runs.running(tmp_path, 1, 20)
    path = worker_file(tmp_path, 0)
    path.write_bytes(path.read_bytes()[:-40])
    assert Run(tmp_path).state(now)["workers"][0]["bar"]["step"] == pytest.approx(19, abs=0.1)


def test_a_later_version_is_told(tmp_path: Path) -> None:
    now = live_runs.running(tmp_path, 1, 5, jaxtribute="17.0.dev1")
    assert "jaxtribute 17.0.dev1 has written this run" in shown(Run(tmp_path), now)
    now = live_runs.running(tmp_path, 1, 5, jaxtribute="0.1.0")
    assert "has written this run" not in shown(Run(tmp_path), now)


def test_files_that_hold_nothing(tmp_path: Path) -> None:
    now = live_runs.running(tmp_path, 1, 5)
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    assert "worker 0 has written nothing that can be read" in shown(Run(tmp_path), now)


def test_a_file_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = live_runs.running(tmp_path, 2, 5)
    path = worker_file(tmp_path, 1)
    path.unlink()
    path.mkdir()
    assert "worker-00001.jsonl cannot be read: it is a folder" in shown(Run(tmp_path), now)
    for name in ("worker-00000.jsonl", "job.jsonl"):
        (tmp_path / name).unlink()
        (tmp_path / name).mkdir()
    assert main(["top", "--once", str(tmp_path)]) == 2
    assert "cannot be read: it is a folder, and no regular file. HINT: " in capsys.readouterr().err


def test_a_folder_that_goes_away(tmp_path: Path) -> None:
    now = live_runs.running(tmp_path / "run", 1, 5)
    run = Run(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(ArgumentError, match="there is no folder"):
        run.state(now)


def put_in_place(kind: str, path: Path) -> None:
    """Puts something that is no regular file at a path, or a file that is hard to read."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(path.parent):
            listener.bind(path.name)
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    else:
        path.symlink_to(path.name if kind == "loop" else "/dev/zero")


def within(seconds: float, call: Callable[[], str]) -> str:
    """What a call returns, which must not wait."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it waits, or has failed"
    return found[0]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("pipe", "it is a named pipe"),
        ("folder", "it is a folder"),
        ("socket", "it is a socket"),
        ("device", "it is a device"),
        ("loop", "Too many levels of symbolic links"),
    ],
)
@pytest.mark.parametrize("name", ["worker-00001.jsonl", "worker-00001.now.json", "job.jsonl", "plan.json"])
def test_what_is_no_regular_file_is_skipped_with_a_sentence(kind: str, words: str, name: str, tmp_path: Path) -> None:
    now = live_runs.running(tmp_path, 2, 5)
    put_in_place(kind, tmp_path / name)
    text = within(60, lambda: shown(Run(tmp_path), now))
    assert f"! {name} cannot be read: {words}" in text
    assert "100 steps" in text


def test_a_huge_file_is_read_a_part_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_AT_ONCE", 1 << 23)
    now = live_runs.running(tmp_path, 2, 5)
    put_in_place("huge", tmp_path / "worker-00001.jsonl")
    text = within(60, lambda: shown(Run(tmp_path), now))
    assert "of worker-00001.jsonl 1,099,494,850,560 bytes are still to be read" in text


def test_a_file_that_was_emptied_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "worker-00000.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}\n{"n":')
    tail = files.Tail(path)
    assert [record["n"] for record in tail.new()] == [1, 2]
    path.write_text('{"n": 3}\n')
    assert [record["n"] for record in tail.new()] == [3]


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "device", "loop"])
@pytest.mark.parametrize("name", ["worker-00000.jsonl", "worker-00000.now.json", "job.jsonl"])
def test_nobody_records_into_what_is_no_regular_file(
    kind: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_in_place(kind, tmp_path / name)
    if name == "job.jsonl":
        status = within(60, lambda: str(main(["launch", "--run", str(tmp_path), "true"])))
        assert status == "2"
        told = capsys.readouterr().err
    else:
        with pytest.raises(ConfigError) as caught:
            record_run(tmp_path)
        told = str(caught.value)
    assert "cannot record the run in" in told
    assert "HINT: name a folder" in told


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "loop"])
@pytest.mark.parametrize("command", ["launch", "serve"])
def test_a_secret_that_cannot_be_read(
    kind: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live_runs.running(tmp_path, 2, 5)
    put_in_place(kind, tmp_path / "secret")
    arguments = ["--key", str(tmp_path / "secret"), "true"]
    if command == "serve":
        arguments = ["--host", "0.0.0.0", "--token-file", str(tmp_path / "secret"), str(tmp_path)]
    assert within(60, lambda: str(main([command, *arguments]))) == "2"
    assert "HINT" in capsys.readouterr().err
