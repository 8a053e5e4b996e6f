"""The launcher that decides: restarts, fewer workers, several machines; scripts of the shell stand for programs."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.addons.launcher import leader, remote
from jaxtribute._src.addons.launcher.attempt import Kind, Outcome
from jaxtribute._src.addons.launcher.escalation import Signal
from jaxtribute._src.addons.launcher.follower import Follower
from jaxtribute._src.addons.launcher.leader import Leader, worst
from jaxtribute._src.addons.launcher.node import ReservedPorts
from jaxtribute._src.addons.launcher.options import Options
from jaxtribute.errors import ClusterError, DeadlineError

# Each start of each rank leaves a line: restart, rank, number of workers.
RECORD = """
index=$(echo "$TF_CONFIG" | sed 's/.*"index": \\([0-9]*\\).*/\\1/')
workers=$(echo "$TF_CONFIG" | tr -cd : | wc -c)
echo "$JAXTRIBUTE_RESTART $index $((workers - 5))" >> record
"""
SAVES = "trap 'exit 75' TERM\n", "\nwhile :; do sleep 0.02; done"
"""What a rank that saves does before it leaves its line, as SIGTERM may come right after that, and then."""


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def options(script: str, *, saves: bool = False, **more: Any) -> Options:
    first, last = SAVES if saves else ("", "")
    return Options(command=("sh", "-c", first + RECORD + script + last), grace_s=0.3, **more)


def starts() -> list[list[int]]:
    """Restart, rank and number of workers of every start, in order."""
    record = Path("record")
    return sorted([int(word) for word in line.split()] for line in record.read_text().splitlines())


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


def started(*, restart: int, ranks: int) -> Callable[[], bool]:
    return lambda: Path("record").exists() and sum(start[0] == restart for start in starts()) == ranks


def go(*jobs: Awaitable[Any]) -> list[Any]:
    async def everything() -> list[Any]:
        return await asyncio.wait_for(asyncio.gather(*jobs), 150)

    return asyncio.run(everything())


def coordinator() -> str:
    with ReservedPorts(1) as ports:
        return f"127.0.0.1:{ports.numbers[0]}"


@pytest.mark.slow
def test_all_ranks_start_once() -> None:
    assert go(Leader(options("exit 0", workers=3)).run()) == [0]
    assert starts() == [[0, 0, 3], [0, 1, 3], [0, 2, 3]]


@pytest.mark.slow
def test_a_job_is_started_again_until_it_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    script = 'test "$JAXTRIBUTE_RESTART" = 2 || exit 9'
    assert go(Leader(options(script, max_restarts=2)).run()) == [0]
    assert starts() == [[0, 0, 1], [1, 0, 1], [2, 0, 1]]
    said = capsys.readouterr().err
    assert said.count("rank 0 ended with exit code 9") == 2
    assert "starts the job again (2 of 2 restarts)" in said


@pytest.mark.slow
def test_after_the_last_restart_the_code_is_that_of_the_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert go(Leader(options("exit 9", max_restarts=1)).run()) == [9]
    assert len(starts()) == 2
    assert "does not start the job again: no more than 1 restarts are allowed" in capsys.readouterr().err
    assert go(Leader(options("exit 75")).run()) == [75]
    assert "does not start" not in capsys.readouterr().err


@pytest.mark.slow
def test_the_same_error_three_times_ends_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    error = "echo 'Traceback (most recent call last):'; echo 'NameError: loss'; exit 1"
    assert go(Leader(options(error, max_restarts=9)).run()) == [1]
    assert len(starts()) == 3
    assert "the job has ended 3 times in a row with the same error" in capsys.readouterr().err


@pytest.mark.slow
def test_preemptions_have_a_budget_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    script = 'case "$JAXTRIBUTE_RESTART" in [01]) exit 75;; 2) exit 9;; 3) exit 75;; esac'
    assert go(Leader(options(script, max_restarts=1)).run()) == [0]
    assert len(starts()) == 5
    said = capsys.readouterr().err
    assert "starts the job again (2 of 100 preemptions)" in said
    assert "starts the job again (1 of 1 restarts)" in said


@pytest.mark.slow
@pytest.mark.parametrize(("restarts", "preemptions", "begins"), [(0, 2, 3), (9, 0, 1), (9, 1, 2)])
def test_after_the_last_preemption_whoever_runs_the_launcher_decides(
    restarts: int, preemptions: int, begins: int
) -> None:
    script = options("exit 75", max_restarts=restarts, max_preemptions=preemptions)
    assert go(Leader(script).run()) == [75]
    assert len(starts()) == begins


@pytest.mark.slow
def test_a_worker_that_was_killed_is_left_out_once() -> None:
    script = """
        case "$JAXTRIBUTE_RESTART$index" in 02) kill -9 $$;; 1*) exit 75;; 0*) sleep 600;; esac
    """
    assert go(Leader(options(script, workers=3, min_workers=2, max_restarts=5)).run()) == [0]
    assert [start for start in starts() if start[0] == 1] == [[1, 0, 2], [1, 1, 2]]
    assert [start for start in starts() if start[0] == 2] == [[2, 0, 3], [2, 1, 3], [2, 2, 3]]


@pytest.mark.slow
def test_growing_lets_the_ranks_save_and_is_no_failure() -> None:
    one = Leader(options('test "$JAXTRIBUTE_RESTART" = 1 && exit 0', saves=True, workers=2))

    async def grow() -> None:
        await until(started(restart=0, ranks=2))
        one.grow()
        one.grow()

    assert go(one.run(), grow()) == [0, None]
    assert len(starts()) == 4


@pytest.mark.slow
def test_a_signal_ends_the_job_whatever_restarts_are_left() -> None:
    one = Leader(options("", saves=True, workers=2, max_restarts=3))

    async def preempt() -> None:
        await until(started(restart=0, ranks=2))
        one.forward(Signal.SIGTERM)

    assert go(one.run(), preempt()) == [75, None]
    assert len(starts()) == 2


@pytest.mark.slow
def test_a_coordinator_that_goes_while_it_starts_takes_the_others_along_and_the_job_may_start_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """SIGTERM comes to machine 0 alone, whose rank 0 does not listen yet; JAX aborts the ranks of both machines."""
    script = """
        test "$index" = 0 && exec sleep 600
        trap 'sleep 1; kill -ABRT $$' TERM
        test "$index" = 2 && { until test -e gone; do sleep 0.02; done; kill -ABRT $$; }
        while :; do sleep 0.02; done
    """
    first, second = machines(script)

    async def preempt() -> None:
        await until(started(restart=0, ranks=3))
        await asyncio.sleep(0.5)  # until the traps are there
        first.forward(Signal.SIGTERM)
        Path("gone").touch()

    assert go(first.run(), second.run(), preempt()) == [75, 75, None]
    assert "as rank 0 did not listen for it, or was still starting. It may be" in capsys.readouterr().err


def machines(script: str, **more: Any) -> tuple[Leader, Follower]:
    address = coordinator()
    shared = {"nodes": 2, "coordinator": address, **more}
    here: dict[str, Any] = {"workers": 2, **shared}
    there: dict[str, Any] = {"workers": 1, **shared, "node_rank": 1}
    first, second = options(script, **here), options(script, **there)
    return Leader(first), Follower(second)


@pytest.mark.slow
def test_two_machines_form_one_job() -> None:
    # The rank that fails waits until all have left their lines: the others are stopped as soon as it ends.
    fails = "until test $(wc -l < record) = 3; do sleep 0.01; done; exit 6"
    first, second = machines(f'test "$index$JAXTRIBUTE_RESTART" = 20 && {{ {fails}; }}; exit 0', max_restarts=1)
    assert go(first.run(), second.run()) == [0, 0]
    assert starts() == [[restart, rank, 3] for restart in (0, 1) for rank in range(3)]


@pytest.mark.slow
def test_a_failure_on_one_machine_stops_the_other_and_both_exit_with_its_code() -> None:
    first, second = machines('test "$index" = 2 && exit 6; sleep 600')
    assert go(first.run(), second.run()) == [6, 6]
    first, second = machines('test "$index" = 0 && exit 5; sleep 600')
    assert go(first.run(), second.run()) == [5, 5]


@pytest.mark.slow
def test_a_traceback_of_another_machine_is_shown_here_too(capfd: pytest.CaptureFixture[str]) -> None:
    error = "ValueError: boom\n  a\n\nHINT: b"
    traceback = f"echo 'Traceback (most recent call last):'; echo '{error}'; exit 1"
    first, second = machines(f'test "$index" = 2 && {{ {traceback}; }}; sleep 600')
    assert go(first.run(), second.run()) == [1, 1]
    captured = capfd.readouterr()
    # The second machine, whose terminal is the same here, has shown it as it came.
    assert captured.out.count("ValueError: boom") == 1
    assert f"the traceback of rank 2:\nTraceback (most recent call last):\n{error}" in captured.err
    assert f"rank 2 ended with exit code 1: {error}" in captured.err


def test_a_machine_that_waits_can_be_told_to_leave() -> None:
    first, second = machines("exit 0")
    third = Follower(replace(second._options, nodes=3))  # pyright: ignore[reportPrivateUsage]
    patient = Leader(replace(first._options, nodes=3))  # pyright: ignore[reportPrivateUsage]

    async def leave() -> None:
        await until(lambda: patient._meeting is not None and bool(patient._meeting.present))  # pyright: ignore[reportPrivateUsage]
        third.forward(Signal.SIGTERM)
        await until(lambda: patient._meeting is not None and not patient._meeting.present)  # pyright: ignore[reportPrivateUsage]
        patient.forward(Signal.SIGTERM)

    assert go(patient.run(), third.run(), leave()) == [75, 75, None]


@pytest.mark.slow
def test_another_launcher_of_machine_0_takes_the_place_of_one_that_was_lost(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = machines("test -e again || sleep 600", max_restarts=1)
    third = Leader(first._options)  # pyright: ignore[reportPrivateUsage]

    async def lose() -> int:
        job = asyncio.ensure_future(first.run())
        await until(started(restart=0, ranks=3))
        assert first._meeting is not None  # pyright: ignore[reportPrivateUsage]
        # As a process that is killed leaves it: its connections end, and nobody is told how the job did.
        for node in list(first._meeting.present.values()):  # pyright: ignore[reportPrivateUsage]
            await node.line.close()
        first._meeting.present.clear()  # pyright: ignore[reportPrivateUsage]
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        Path("again").touch()
        return await third.run()

    assert go(second.run(), lose()) == [0, 0]
    assert len(starts()) == 6
    assert "machine 1 lost the launcher of machine 0 and tries to come back" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_on_machine_0_ends_all() -> None:
    first, second = machines("sleep 600")

    async def interrupt() -> None:
        await until(started(restart=0, ranks=3))
        first.forward(Signal.SIGINT)

    assert go(first.run(), second.run(), interrupt()) == [130, 130, None]


@pytest.mark.slow
def test_a_machine_that_leaves_is_done_without_and_taken_back() -> None:
    leader.REJOIN_S, before = 0.1, leader.REJOIN_S
    try:
        script = 'test "$JAXTRIBUTE_RESTART" = 2 && exit 0'
        first, second = machines(script, saves=True, workers=1, min_workers=1, max_restarts=1)

        async def come_and_go() -> int:
            joined = asyncio.ensure_future(second.run())
            await until(started(restart=0, ranks=2))
            second.forward(Signal.SIGTERM)
            first.grow()  # as when the program has agreed with the others to save
            left = await joined
            await until(started(restart=1, ranks=1))
            third = Follower(second._options)  # pyright: ignore[reportPrivateUsage]
            assert await third.run() == 0
            return left

        assert go(first.run(), come_and_go()) == [0, 75]
        assert starts() == [[0, 0, 2], [0, 1, 2], [1, 0, 1], [2, 0, 2], [2, 1, 2]]
    finally:
        leader.REJOIN_S = before


@pytest.mark.slow
def test_a_machine_that_is_lost_fails_the_job(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "CAUSE_S", 0.1)
    first, second = machines("sleep 600")

    async def vanish() -> None:
        joined = asyncio.ensure_future(second.run())
        await until(started(restart=0, ranks=3))
        joined.cancel()
        await asyncio.gather(joined, return_exceptions=True)

    assert go(first.run(), vanish()) == [70, None]
    assert "the job has lost machine 1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_machine_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "ANSWER_S", 0.1)
    monkeypatch.setattr(remote.RemoteNode, "stop", lambda self: None)
    first, second = machines('test "$index" = 0 && { sleep 0.3; exit 5; }; sleep 600')
    assert go(first.run(), second.run()) == [5, 70]


@pytest.mark.slow
def test_machines_that_do_not_come_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(leader, "SPEAK_EVERY_S", 0.0)
    lonely = options("exit 0", nodes=3, coordinator=coordinator(), join_timeout_s=0.2)
    with pytest.raises(DeadlineError, match=r"waited .* for machines 1, 2.*--min-workers"):
        go(Leader(lonely).run())
    assert "waits at 127.0.0.1:" in capsys.readouterr().err
    enough = options("exit 0", nodes=2, coordinator=coordinator(), join_timeout_s=0.2, min_workers=1)
    assert go(Leader(enough).run()) == [0]
    assert "goes on with 1 worker(s), without machine 1" in capsys.readouterr().err


@pytest.mark.parametrize("there", [b"k" * 32, None])
def test_a_machine_that_was_sent_away_is_told_at_the_end(there: bytes | None) -> None:
    waiting = Leader(options("exit 0", nodes=2, coordinator=coordinator(), key=b"K" * 32, join_timeout_s=600))
    given = waiting._options  # pyright: ignore[reportPrivateUsage]

    async def come() -> None:
        leads = asyncio.ensure_future(waiting.run())
        with pytest.raises(ClusterError, match="key"):
            await Follower(replace(given, node_rank=1, key=there)).run()
        waiting._options = replace(given, join_timeout_s=0)  # pyright: ignore[reportPrivateUsage]
        expected = r"for machine 1; 127.0.0.1 was sent away: it does not know the key. HINT: .*--key"
        with pytest.raises(DeadlineError, match=expected):
            await leads

    go(come())


def test_a_signal_while_waiting_for_machines_ends_it() -> None:
    one = Leader(options("exit 0", nodes=2, coordinator=coordinator()))

    async def interrupt() -> None:
        await asyncio.sleep(0)
        one.forward(Signal.SIGINT)

    assert go(one.run(), interrupt()) == [130, None]


def test_an_address_that_is_taken_or_of_another_machine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"cannot listen at {address}"):
            go(Leader(options("exit 0", nodes=2, coordinator=address)).run())


def test_the_worst_outcome_is_that_of_the_job() -> None:
    done, stopped = Outcome(Kind.DONE), Outcome(Kind.STOPPED, 143)
    cause, consequence = Outcome(Kind.FAILED, 3), Outcome(Kind.FAILED, 70)
    preempted = Outcome(Kind.PREEMPTED, 75)
    order = [done, stopped, preempted, consequence, cause]
    for count in range(1, len(order) + 1):
        assert worst(order[:count]) is order[count - 1]


KINDS = [Outcome(kind, code) for kind in Kind for code in ((1, 70) if kind is Kind.FAILED else (0,))]


@given(st.lists(st.sampled_from(KINDS), min_size=1), st.randoms())
def test_the_worst_outcome_does_not_depend_on_the_order(outcomes: list[Outcome], random: Random) -> None:
    shuffled = random.sample(outcomes, len(outcomes))
    assert worst(shuffled) == worst(outcomes)
    assert (worst(outcomes).kind is Kind.DONE) == all(one.kind is Kind.DONE for one in outcomes)
