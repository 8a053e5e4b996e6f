"""Islands that the launcher starts again one by one; scripts of the shell stand for programs."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxtribute._src.addons.cli.main import main
from jaxtribute._src.addons.launcher.attempt import Kind, Outcome
from jaxtribute._src.addons.launcher.escalation import Signal
from jaxtribute._src.addons.launcher.islands import Budget, IslandsLauncher, Life
from jaxtribute._src.addons.launcher.node import ReservedPorts
from jaxtribute._src.addons.launcher.options import Options
from jaxtribute.errors import ArgumentError

# Each start of each island leaves a line: island, incarnation, process.
RECORD = """
index=$(echo "$TF_CONFIG" | sed 's/.*"index": \\([0-9]*\\).*/\\1/')
life=$JAXTRIBUTE_INCARNATION
echo "$index $life $$" >> record
fail() {
    echo 'Traceback (most recent call last):'
    echo '  File "train.py", line 1'
    echo "$1"
    exit 1
}
# Until as many starts were made; then all are done.
await() { while test $(wc -l < record) -lt $1; do sleep 0.02; done; }
"""


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def go(
    script: str,
    *,
    send: Callable[[IslandsLauncher], None] | None = None,
    least: int = 1,
    bare: bool = False,
    **more: Any,
) -> int:
    """Runs a job of two islands, or as many as are asked for; `send` is called once all have left a line."""
    settings: dict[str, Any] = {"workers": 2, "grace_s": 0.3} | more
    options = Options(command=("sh", "-c", script if bare else RECORD + script), **settings)

    async def job() -> int:
        launcher = IslandsLauncher(options, least)
        running = asyncio.ensure_future(launcher.run())
        if send is not None:
            while len(starts()) < options.workers:
                await asyncio.sleep(0.01)
            send(launcher)
        return await asyncio.wait_for(running, 60)

    return asyncio.run(job())


def starts() -> list[tuple[int, int]]:
    """Island and incarnation of every start."""
    return sorted((index, life) for index, life, _ in lines())


def lines() -> list[list[int]]:
    record = Path("record")
    return [[int(word) for word in line.split()] for line in record.read_text().splitlines()] if record.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize("island", [0, 1])
def test_whoever_dies_is_started_again_alone(island: int, capsys: pytest.CaptureFixture[str]) -> None:
    script = f'test "$index $life" = "{island} 0" && kill -9 $$; await 3'
    assert go(script, max_restarts=2) == 0
    assert starts() == sorted([(0, 0), (1, 0), (island, 1)])
    assert f"starts island {island} again, alone (1 of 2 restarts)" in capsys.readouterr().err


@pytest.mark.slow
def test_without_restarts_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert go('test "$index" = 1 && kill -9 $$; await 3; sleep 0.3', workers=3) == 0
    assert starts() == [(0, 0), (1, 0), (2, 0)]
    said = capsys.readouterr().err
    assert "goes on without island 1 (0 of 0 restarts); islands left: 2" in said
    assert "the job is done, without island 1" in said


@pytest.mark.slow
def test_fewer_than_suffice_end_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert go('test "$index" = 1 && exit 7; sleep 600', least=2) == 7
    assert "1 of the islands is left, fewer than 2: all end" in capsys.readouterr().err


@pytest.mark.slow
def test_failures_and_preemptions_are_counted_apart() -> None:
    # One failure, then two preemptions, of budgets of one and of two.
    script = "test $index = 1 && case $life in 0) kill -9 $$;; 1) exit 75;; 2) kill -TERM $$;; esac; await 5"
    assert go(script, max_restarts=1, max_preemptions=2, least=2) == 0
    assert starts() == [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3)]


@pytest.mark.slow
def test_the_same_error_three_times_in_a_row_ends_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert go('test $index = 1 && fail "ValueError: boom"; sleep 600', max_restarts=9) == 1
    assert starts() == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert "island 1 has ended 3 times in a row with the same error" in capsys.readouterr().err


@pytest.mark.slow
def test_other_errors_in_between_are_no_loop() -> None:
    script = 'test $index = 1 && case $life in 1) kill -9 $$;; 0|2|3) fail "ValueError: boom";; esac; await 6'
    assert go(script, max_restarts=9) == 0


def test_a_long_life_is_no_part_of_a_loop() -> None:
    failed = Outcome(Kind.FAILED, 1, 0, "", "Traceback:\nValueError: boom")
    loops = Life(0).repetition.loops
    assert [loops(failed, 1.0), loops(failed, 1.0), loops(failed, 100.0)] == [False] * 3
    assert [loops(failed, 1.0) for _ in range(3)] == [False, False, True]


def test_who_fails_again_and_again_waits_before_the_next_start_whatever_it_says() -> None:
    life, killed = Life(0), Outcome(Kind.FAILED, 128 + Signal.SIGKILL)
    failures = [Outcome(Kind.FAILED, 1, 0, "", f"Traceback:\nValueError: {number}") for number in range(10)]
    assert [life.wait_s(each, 1.0) for each in failures] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    assert [life.wait_s(killed, 0.1) for _ in range(3)] == [0.0] * 3
    ends = [Outcome(Kind.FAILED, 7), Outcome(Kind.FAILED, 128 + Signal.SIGTERM)]  # which say nothing
    assert [life.wait_s(each, 1.0) for each in ends] == [0.0, 0.5]
    assert life.wait_s(failures[0], 100.0) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(("end", "code", "count"), [("has ended", 0, 2), ("does not answer", 1, 3)])
def test_an_island_that_comes_back_when_other_machines_are_done(
    end: str, code: int, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    error = f"ClusterError: island 0 was started again, and no other island trains: island 1 {end}. HINT: .."
    settings: dict[str, Any] = {"workers": 1, "hosts": ("127.0.0.1", "127.0.0.2"), "max_restarts": 2}
    assert go(f'case $life in 0) kill -9 $$;; 1) fail "{error}";; *) fail "{error}.";; esac', **settings) == code
    assert len(starts()) == count
    told = "the other machines' launchers say whether the job is done, without island 0" in capsys.readouterr().err
    assert told == (code == 0)


@pytest.mark.slow
def test_of_an_island_that_comes_back_when_the_others_are_done_one_sentence_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = "jaxtribute.errors.ClusterError: island 0 was started again, and no other island trains. HINT: .."
    first = f'test $life = 0 && kill -9 $$; while kill -0 $other; do sleep 0.02; done; sleep 0.5; fail "{error}"'
    script = "await 2; other=$(grep '^1 ' record | cut -d' ' -f3); test $index = 1 && { await 3; exit 0; }; " + first
    assert go(script, max_restarts=2) == 0
    said = capsys.readouterr().err
    assert "rank 0 was killed by SIGKILL" in said
    assert "exit code 1" not in said
    assert said.count("ends without island 0 (others are done)") == 1


def test_a_budget_ends() -> None:
    budget = Budget(1, 0)
    assert [budget.take(Kind.PREEMPTED), budget.take(Kind.FAILED), budget.take(Kind.FAILED)] == [False, True, False]


@pytest.mark.slow
def test_who_dies_when_others_are_done_is_not_started_again(capsys: pytest.CaptureFixture[str]) -> None:
    script = "await 2; test $index = 0 && exit 0; sleep 0.5; kill -9 $$"
    assert go(script, max_restarts=9) == 0
    said = capsys.readouterr().err
    assert "ends without island 1 (others are done)" in said
    assert "goes on without" not in said
    assert starts() == [(0, 0), (1, 0)]


@pytest.mark.slow
@pytest.mark.parametrize(("error", "code"), [("ValueError: boom", 1), ("jaxtribute.errors.ClusterError: late", 0)])
def test_an_error_after_the_others_are_done_is_told_by_the_exit_code(error: str, code: int) -> None:
    assert go(f'await 2; test $index = 0 && exit 0; sleep 0.5; fail "{error}"', max_restarts=9) == code


@pytest.mark.slow
def test_a_stopped_island_does_not_hold_up_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    assert go("await 2; test $index = 0 && exit 0; kill -STOP $$", save_s=0.5) == 0
    assert time.monotonic() - begun < 30
    assert "island 1 was stopped by a signal, and the others are done" in capsys.readouterr().err


SPARE = """
if test -n "$JAXTRIBUTE_SPARE"; then
    test -z "$TF_CONFIG$JAXTRIBUTE_RUN" || exit 3
    told=$(cat /dev/fd/$JAXTRIBUTE_SPARE)
    echo "${told:-nothing}" >> spares
    exit 0
fi
"""


@pytest.mark.slow
def test_a_spare_takes_the_place_of_an_island_that_dies(capsys: pytest.CaptureFixture[str]) -> None:
    """It is told who it is, and another one waits after it, which is told nothing."""
    spares = Path("spares")

    def told() -> list[str]:
        return spares.read_text().splitlines() if spares.exists() else []

    await_spare = "until test -s spares; do sleep 0.02; done"
    script = SPARE + RECORD + f"test $index = 1 && kill -9 $$; {await_spare}"
    assert go(script, bare=True, workers=2, max_restarts=1, spares=1, variables={"JAXTRIBUTE_RUN": "run"}) == 0
    environment = json.loads(told()[0])
    assert environment["JAXTRIBUTE_RUN"] == "run"
    assert json.loads(environment["TF_CONFIG"])["task"]["index"] == 1
    assert environment["JAXTRIBUTE_INCARNATION"] == "1"
    assert starts() == [(0, 0), (1, 0)]
    assert "starts island 1 again, alone (1 of 1 restarts)" in capsys.readouterr().err


@pytest.mark.slow
def test_a_spare_leaves_the_log_of_an_island_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is started while island 0 has long said something."""
    monkeypatch.setattr("jaxtribute._src.addons.launcher.spares._AGAIN_S", 0.0)
    spare = 'if test -n "$JAXTRIBUTE_SPARE"; then echo >> waiting; cat /dev/fd/$JAXTRIBUTE_SPARE; exit 0; fi'
    script = """
    echo "said by $index"
    until test -s logs/rank-0.log; do sleep 0.02; done
    test $index = 1 && kill -9 $$
    until test $(wc -l < waiting) -ge 2; do sleep 0.02; done
    """
    assert go(spare + RECORD + script, bare=True, max_restarts=1, spares=1, log_dir=Path("logs")) == 0
    assert Path("logs/rank-0.log").read_text() == "said by 0\n"


@pytest.mark.slow
def test_two_jobs_never_listen_on_one_port() -> None:
    """Nobody listens yet, or no more: the port is the first job's nevertheless."""
    with ReservedPorts(1) as first:
        (port,) = first.numbers
        for host in ("127.0.0.1", "192.0.2.1"):  # which no machine has
            with pytest.raises(ArgumentError, match=rf"nothing can listen at {host}:{port}: .*another --port"):
                go("exit 3", workers=1, hosts=(host, "127.0.0.2"), port=port)
    # It is free again, and those who are told so can listen there.
    with ReservedPorts(1, first=port), socket.create_server(("127.0.0.1", port), reuse_port=True):
        pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "answer", "code"),
    [
        (Signal.SIGINT, "exit 75", 130),
        (Signal.SIGTERM, "exit 75", 75),
        (Signal.SIGTERM, "", 75),
        (Signal.SIGTERM, "exit 3", 143),
    ],
)
def test_nobody_is_started_again_after_a_signal_to_the_launcher(
    number: Signal, answer: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that does not even answer in time is asked to start again, too; one with an error of its own is not."""
    script = f"trap '{answer}' TERM; trap 'exit 1' INT; while :; do sleep 0.02; done"
    send = lambda launcher: launcher.forward(number)  # noqa: E731
    assert go(script, send=send, max_restarts=9, max_preemptions=9, save_s=0.3) == code
    assert starts() == [(0, 0), (1, 0)]
    for _, _, pid in lines():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    said = capsys.readouterr().err
    assert "PreemptionCheckpointHandler" not in said  # which islands refuse
    assert ("saved before with jd.CheckpointManager" in said) == (answer == "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--min-islands", "1"], "--min-islands without --elastic"),
        (["--elastic", "--workers", "2", "--min-islands", "3"], "--min-islands 3 is more than the 2 worker"),
        (["--elastic", "--min-workers", "1"], "--elastic with --min-workers"),
        (["--elastic", "--ps", "1"], "--elastic with --ps"),
        (["--elastic", "--ray", "auto"], "--elastic with --ray"),
        (["--elastic", "--nodes", "2", "--coordinator", "a:1"], "--elastic with --nodes, --coordinator"),
        (["--hosts", "a,b"], "--hosts without --elastic"),
        (["--elastic", "--rejoin"], "--rejoin without --hosts"),
        (["--elastic", "--rejoin-if", "1"], "--rejoin without --hosts"),
        (["--rejoin-if", "1"], "--rejoin-if without --elastic"),
        (["--spares", "1"], "--spares without --elastic"),
        (["--elastic", "--spares", "1"], "--spares 1 with --max-restarts 0"),
        (["--elastic", "--hosts", "a,b"], "--node-rank is None, and --hosts names 2 machines"),
        (["--elastic", "--hosts", "a,b", "--node-rank", "2"], "--node-rank is 2"),
        (["--elastic", "--hosts", "a,a", "--node-rank", "1"], "names a machine twice"),
        (["--elastic", "--hosts", "a,b", "--node-rank", "1"], "--hosts without --key"),
    ],
)
def test_options_that_make_no_sense_together(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", *arguments, "sh", "-c", "exit 0"]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("elastic", [True, False])
def test_a_program_that_makes_one_cluster_of_its_workers_is_told(tmp_path: Path, elastic: bool) -> None:
    program = tmp_path / "train.py"
    program.write_text("import jaxtribute as jd\njd.MultiWorkerMirroredStrategy()\n")
    given = ["--elastic"] * elastic
    command = [sys.executable, "-m", "jaxtribute", "launch", *given, "--workers", "2", "--devices-per-worker", "1"]
    done = subprocess.run([*command, str(program)], capture_output=True, text=True, check=True)
    said = (done.stdout + done.stderr).count("cannot come back into it. HINT: use jd.experimental.ElasticStrategy")
    assert said == elastic
