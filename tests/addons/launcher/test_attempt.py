"""One start of a machine's ranks, and how it ended."""

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxtribute._src.addons.launcher.attempt import Attempt, Kind, Outcome, Program, exit_code, in_words
from jaxtribute._src.addons.launcher.escalation import Signal
from jaxtribute._src.addons.launcher.output import RankOutput
from jaxtribute.errors import ArgumentError
from processes import await_end

pytestmark = pytest.mark.slow

DEAF = "trap '' TERM INT; echo ready; while :; do sleep 0.05; done"
"""A rank that hears no signal but SIGKILL."""


class Ranks:
    """Shell scripts as ranks, and what they print."""

    def __init__(self, *scripts: str, grace_s: float = 0.3, save_s: float = 5.0, terminal: bool = False) -> None:
        self.outputs = [RankOutput(b"", shown=False, log=None) for _ in scripts]
        self._programs = {
            rank: Program(["sh", "-c", script], dict(os.environ), output, terminal=terminal)
            for rank, (script, output) in enumerate(zip(scripts, self.outputs, strict=True))
        }
        self._times = grace_s, save_s

    def run(self, then: Callable[[Attempt], None] | None = None) -> Outcome:
        """Runs them; `then` is called once all have printed a line."""

        async def job() -> Outcome:
            attempt = Attempt(self._programs, *self._times)
            running = asyncio.ensure_future(attempt.run())
            while then is not None and not all(output.last_line() for output in self.outputs):
                await asyncio.sleep(0.005)
            if then is not None:
                then(attempt)
            return await asyncio.wait_for(running, 120)

        return asyncio.run(job())

    def lines(self, rank: int) -> list[str]:
        return [line.decode() for line in self.outputs[rank].lines()]


def test_ranks_that_end_well() -> None:
    ranks = Ranks("echo one; echo error >&2; printf last", "exit 0")
    assert ranks.run() == Outcome(Kind.DONE)
    assert ranks.lines(0) == ["one", "error", "last"]


def test_the_first_failure_stops_the_others_and_gives_the_code() -> None:
    start = time.monotonic()
    outcome = Ranks(DEAF, "echo 'Traceback (most recent call last):'; echo 'E: boom'; exit 7", "sleep 600").run()
    assert (outcome.kind, outcome.code, outcome.rank) == (Kind.FAILED, 7, 1)
    assert outcome.words == "ended with exit code 7: E: boom"
    assert outcome.traceback == "Traceback (most recent call last):\nE: boom"
    assert outcome.killed == 0
    assert time.monotonic() - start < 50


def test_an_exception_is_the_end_though_jax_has_aborted_the_process_then() -> None:
    outcome = Ranks("echo 'Traceback (most recent call last):'; echo 'E: boom'; kill -ABRT $$").run()
    assert (outcome.code, outcome.words) == (1, "ended with exit code 1: E: boom")
    assert Ranks("kill -ABRT $$").run().code == 134


def test_a_rank_that_was_killed_is_counted() -> None:
    outcome = Ranks("kill -9 $$", "sleep 600").run()
    assert (outcome.kind, outcome.code, outcome.words) == (Kind.FAILED, 137, "was killed by SIGKILL")
    assert outcome.killed == 1


def test_a_worker_that_ended_because_of_another_is_not_the_cause() -> None:
    outcome = Ranks("exit 70", "sleep 0.2; exit 4").run()
    assert (outcome.code, outcome.rank) == (4, 1)
    assert Ranks("exit 70", "exit 0").run().code == 70


def test_preempted_ranks_may_all_save() -> None:
    outcome = Ranks("exit 75", "sleep 0.5; echo saved; exit 75").run()
    assert (outcome.kind, outcome.code) == (Kind.PREEMPTED, 75)
    ranks = Ranks("exit 75", "sleep 0.1; exit 3", DEAF)
    assert ranks.run().code == 3
    assert Ranks("exit 75", DEAF, save_s=0.1).run().kind is Kind.PREEMPTED


def test_a_signal_is_handed_on() -> None:
    trap = "trap 'echo saving; exit 75' TERM; echo ready; while :; do sleep 0.05; done"
    ranks = Ranks(trap, trap)
    outcome = ranks.run(lambda attempt: attempt.forward(Signal.SIGTERM))
    assert (outcome.kind, outcome.code) == (Kind.PREEMPTED, 75)
    assert ranks.lines(1) == ["ready", "saving"]
    # One that had nothing to save with may be started again; one that answers with an error asks for nothing.
    for script, code in {"echo ready; sleep 600": 75, trap.replace("75", "1"): 143}.items():
        outcome = Ranks(script).run(lambda attempt: attempt.forward(Signal.SIGTERM))
        assert (outcome.kind, outcome.code) == (Kind.STOPPED, code)


ANSWERS = "trap 'echo rest of JAX; {}' TERM; echo ready; while :; do sleep 0.05; done"
ABORTS = ANSWERS.format("kill -ABRT $$")
"""A rank that listens for SIGTERM, and then loses the coordinator."""


@pytest.mark.parametrize(
    ("scripts", "code", "words", "shown"),
    [
        (["echo ready; sleep 600", ABORTS], 75, "as rank 0 did not listen for it, or was still", b""),
        ([ANSWERS.format("exit 70"), "echo ready; sleep 600"], 75, "as rank 1 did not listen", b""),
        (["echo ready; sleep 600"] * 2, 75, "as no rank listened for it: all were still starting", b""),
        ([ANSWERS.format("exit 0"), "echo ready; sleep 600"], 75, "no rank has said", b"rest of JAX\n"),
        ([ANSWERS.format("exit 1"), "echo ready; sleep 600"], 143, "", b"rest of JAX\n"),
        # Nobody else's end can be the reason.
        ([ABORTS, "echo ready; sleep 600"], 143, "", b"rest of JAX\n"),
    ],
)
def test_what_follows_from_a_rank_that_is_still_starting_is_no_failure(
    scripts: list[str], code: int, words: str, shown: bytes, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """SIGTERM ends a rank that does not listen for it yet, and JAX then aborts those that have met it."""
    ranks = Ranks(*scripts)

    def forward(attempt: Attempt) -> None:
        for output in ranks.outputs:
            output.shown = True
        attempt.forward(Signal.SIGTERM)

    outcome = ranks.run(forward)
    assert (outcome.kind, outcome.code) == (Kind.STOPPED, code)
    assert words in outcome.words
    assert capfdbinary.readouterr().out == shown


def test_what_ranks_say_while_they_save_is_shown(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    script = "trap 'echo saving; sleep 2; exit 75' TERM; echo ready; while :; do sleep 0.05; done"
    ranks = Ranks(script)
    seen: list[bytes] = []

    def forward(attempt: Attempt) -> None:
        ranks.outputs[0].shown = True
        attempt.forward(Signal.SIGTERM)
        asyncio.get_running_loop().call_later(1.6, lambda: seen.append(capfdbinary.readouterr().out))

    assert ranks.run(forward).code == 75
    # While it saves, and not only once all have ended.
    assert seen == [b"saving\n"]


def test_a_rank_that_the_others_have_lost_is_named() -> None:
    told = "jaxtribute: worker 0 (a:1) ends, since worker 1 (a:2) was lost: no pulse for 3 s, as worker 0 (a:1) noticed"
    outcome = Ranks(f"echo '{told}'; echo gloo; exit 70", "sleep 600").run()
    assert (outcome.kind, outcome.code, outcome.rank) == (Kind.FAILED, 70, 1)
    assert outcome.words == "was lost, as rank 0 says: it gave no sign of life"


def test_ctrl_c_ends_the_ranks_and_a_second_one_at_once() -> None:
    outcome = Ranks(DEAF, DEAF, grace_s=0.1).run(lambda attempt: attempt.forward(Signal.SIGINT))
    assert (outcome.kind, outcome.code) == (Kind.STOPPED, 130)

    def twice(attempt: Attempt) -> None:
        attempt.forward(Signal.SIGINT)
        attempt.forward(Signal.SIGINT)

    start = time.monotonic()
    assert Ranks(DEAF, grace_s=600).run(twice).code == 130
    assert time.monotonic() - start < 100


def test_a_failure_elsewhere_stops_the_ranks() -> None:
    outcome = Ranks(DEAF, "echo ready; sleep 600").run(lambda attempt: attempt.stop())
    assert outcome.kind is Kind.STOPPED


def test_what_a_rank_leaves_running_ends_with_it() -> None:
    ranks = Ranks("sleep 600 & echo $!")
    assert ranks.run().kind is Kind.DONE
    await_end(int(ranks.lines(0)[0]))


def test_a_rank_may_have_a_terminal() -> None:
    ranks = Ranks("test -t 1 && echo yes; stty size <&1; echo ready; sleep 0.1", terminal=True)
    assert ranks.run(lambda attempt: attempt.resize()).kind is Kind.DONE
    assert ranks.lines(0)[0] == "yes"
    assert "\r" not in "".join(ranks.lines(0))


def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    output = RankOutput(b"", shown=False, log=None)
    attempt_of = {0: Program([str(tmp_path / "none")], {}, output)}
    with pytest.raises(ArgumentError):
        asyncio.run(_run(attempt_of))


async def _run(programs: dict[int, Program]) -> Outcome:
    return await Attempt(programs, 1, 1).run()


def test_an_outcome_travels() -> None:
    outcome = Outcome(Kind.FAILED, 3, 1, "ended", "Traceback", 2)
    assert Outcome.from_json(json.loads(json.dumps(outcome.as_json()))) == outcome


@pytest.mark.parametrize(
    ("returncode", "code", "words"),
    [
        (0, 0, "ended with exit code 0"),
        (3, 3, "ended with exit code 3"),
        (-9, 137, "was killed by SIGKILL"),
        (-33, 161, "was killed by signal 33"),
    ],
)
def test_return_codes(returncode: int, code: int, words: str) -> None:
    assert exit_code(returncode) == code
    assert in_words(returncode) == words
