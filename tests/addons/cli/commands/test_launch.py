"""`jaxtribute launch` as its user meets it: one command, one exit code, nothing left behind."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

from jaxtribute._src.addons.cli.main import main
from jaxtribute._src.addons.testing.leaks import is_alive
from processes import await_end

LAUNCH = [sys.executable, "-m", "jaxtribute.cli", "launch"]
PROGRAM = """
import json, os, sys
task = json.loads(os.environ["TF_CONFIG"])["task"]
print(f"rank {task['index']} of {sys.argv[1:]} with {os.environ.get('JAXTRIBUTE_CPU_DEVICES')} devices")
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(PROGRAM)
    return "program.py"


@pytest.mark.slow
def test_a_program_runs_once_a_rank_with_its_arguments(program: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--workers", "2", "--devices-per-worker", "3", program, "--workers", "x"]) == 0
    lines = sorted(capfd.readouterr().out.splitlines())
    assert lines == [f"[{rank}] rank {rank} of ['--workers', 'x'] with 3 devices" for rank in range(2)]


@pytest.mark.slow
def test_a_module_or_a_command_will_do(program: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "-m", "this"]) == 0
    assert "[0] Beautiful is better than ugly." in capfd.readouterr().out
    script = """echo hello; case "$TF_CONFIG" in *'"index": 0'*) exit 4;; esac; sleep 600"""
    assert main(["launch", "--workers", "2", "--split", "sh", "-c", script]) == 4
    captured = capfd.readouterr()
    assert captured.out == "hello\n"
    assert "jaxtribute-logs/rank-" in captured.err
    assert sorted(path.name for path in Path("jaxtribute-logs").iterdir()) == ["rank-0.log", "rank-1.log"]


@pytest.mark.slow
@pytest.mark.parametrize("split", [True, False])
def test_a_traceback_is_printed_once(split: bool, program: str, capfd: pytest.CaptureFixture[str]) -> None:
    Path(program).write_text(f"{PROGRAM}\nif task['index'] == 1: raise ValueError('boom')")
    assert main(["launch", "--workers", "2", *(["--split"] if split else []), program]) == 1
    captured = capfd.readouterr()
    everything = captured.out + captured.err
    assert everything.count("Traceback") == 1
    assert "jaxtribute launch: rank 1 ended with exit code 1: ValueError: boom" in captured.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.py"], "there is no program 'none.py'"),
        (["no-such-command"], "or on the path"),
        (["--nodes", "2", "program.py"], "--coordinator"),
        (["--workers", "2", "--gpus-per-worker", "1", "program.py"], "this machine shows 0"),
    ],
)
def test_wrong_arguments(
    arguments: list[str],
    words: str,
    program: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["launch", *arguments]) == 2
    assert words in capfd.readouterr().err


def test_a_number_of_workers_is_at_least_one(program: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["launch", "--workers", "0", program])
    assert "0 is less than 1" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [("--run", "", "names no folder"), ("--log-dir", " ", "names no folder"), ("--port", "70000", "no port from 1")],
)
def test_what_would_be_taken_without_a_word(
    option: str, value: str, words: str, program: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["launch", option, value, program])
    assert words in capfd.readouterr().err


def test_machines_that_do_not_come(program: str, capfd: pytest.CaptureFixture[str]) -> None:
    several = ["--nodes", "2", "--node-rank", "0", "--coordinator", "127.0.0.1:0", "--join-timeout", "0.1"]
    assert main(["launch", *several, program]) == 70
    assert "for machine 1" in capfd.readouterr().err


def test_a_task_of_slurm_becomes_the_program(
    program: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    step = {"NUM_TASKS": "2", "NODELIST": "n1", "TASKS_PER_NODE": "2"}
    for name, value in step.items():
        monkeypatch.setenv(f"SLURM_STEP_{name}", value)
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    became: list[tuple[tuple[str, ...], Mapping[str, str]]] = []

    def replace_process(_: str, command: tuple[str, ...], environment: Mapping[str, str]) -> None:
        became.append((command, environment))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvpe", replace_process)
    with pytest.raises(SystemExit):
        main(["launch", program, "x"])
    ((command, environment),) = became
    assert command == (sys.executable, program, "x")
    assert json.loads(environment["TF_CONFIG"])["task"]["index"] == 1
    assert main(["launch", "--workers", "2", program]) == 2
    assert "--workers cannot be done" in capfd.readouterr().err


def test_mistakes_of_use(program: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--workers", "2", "--min-workers", "3", program]) == 2
    assert "--min-workers 3 is more than the 2 worker(s)" in capfd.readouterr().err
    assert main(["launch", "--run", "/dev/null/x", program]) == 2
    for arguments, words in {
        (): "required: program\n",
        ("--wrokers", program): "unrecognized arguments: --wrokers",
    }.items():
        with pytest.raises(SystemExit):
            main(["launch", *arguments])
        said = capfd.readouterr().err
        assert words in said
        assert "usage: jaxtribute launch" in said


@contextlib.contextmanager
def launched(
    *arguments: str, output: int = subprocess.PIPE, session: bool = False
) -> Generator[subprocess.Popen[bytes]]:
    """A launcher in a process of its own, killed in the end."""
    command, errors = [*LAUNCH, *arguments], None if output == subprocess.PIPE else output
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=session
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_ctrl_c_reaches_the_ranks_and_nothing_stays() -> None:
    script = "trap 'echo heard; exit 1' INT; echo $$; while :; do sleep 0.05; done"
    with launched("--workers", "2", "sh", "-c", script, session=True) as process:
        assert process.stdout is not None
        pids = [int(process.stdout.readline().split()[1]) for _ in range(2)]
        # As the terminal does it: to the whole foreground group, of which the ranks are no part.
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(120) == 130
        assert sorted(process.stdout.read().split()) == [b"[0]", b"[1]", b"heard", b"heard"]
        await_end(*pids)


@pytest.mark.slow
def test_nothing_stays_when_the_launcher_is_killed() -> None:
    script = "trap '' TERM HUP; sleep 600 & echo $$ $!; wait"
    with launched("--workers", "2", "sh", "-c", script) as process:
        assert process.stdout is not None
        pids = [int(word) for _ in range(2) for word in process.stdout.readline().split()[1:]]
        assert len(pids) == 4
        assert all(map(is_alive, pids))
        process.kill()
        process.wait(120)
        await_end(*pids)


@pytest.mark.slow
def test_on_a_terminal_only_rank_0_has_one() -> None:
    ours, theirs = pty.openpty()
    script = "test -t 1 && echo terminal || echo pipe"
    with launched("--workers", "2", "sh", "-c", script, output=theirs) as process:
        os.close(theirs)
        assert process.wait(120) == 0
        printed = b""
        with contextlib.suppress(OSError):  # how the end of a terminal's output shows
            while data := os.read(ours, 4096):
                printed += data
        os.close(ours)
    assert sorted(printed.decode().split("\r\n")) == ["", "[1] pipe", "terminal"]
