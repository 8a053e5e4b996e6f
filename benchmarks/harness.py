"""Alternating measurement: each contender is a process, or several that work together, and runs steps when asked.

Timings on shared machines drift, so contenders take turns and medians and ratios are reported. Each round has an order
of its own: whoever comes after a large contender finds its caches cold and its threads still spinning. A turn may begin
with steps that do not count, for the same reason.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.namespaces import Machine

DEADLINE_S = 300.0
ROOT = Path(__file__).parents[1]
TRAINING_SCRIPT = ROOT / "benchmarks" / "training_script.py"
"""Trains a problem, which its arguments name, as a user's script does."""
# What decides about devices is a suite's to set, not inherited from the shell. Nor is what keeps Python from writing
# byte code: an installed library has it, and an import that compiles its source instead takes three times as long.
_NOT_INHERITED = (
    "JAXTRIBUTE_CPU_DEVICES",
    "JAX_NUM_CPU_DEVICES",
    "PJRT_NPROC",
    "XLA_FLAGS",
    "TF_CONFIG",
    "PYTHONDONTWRITEBYTECODE",
)


@dataclass
class Result:
    """What one contender did: seconds a step for each round, and its losses."""

    name: str
    seconds: list[float] = field(default_factory=list)
    first_loss: float = float("nan")
    """After the first turn."""
    loss: float = float("nan")
    """After the last turn."""

    @property
    def median(self) -> float:
        """Median seconds a step."""
        return statistics.median(self.seconds)

    def add(self, other: Result) -> None:
        """Takes over another's rounds, and its losses."""
        self.seconds += other.seconds
        self.first_loss, self.loss = other.first_loss, other.loss


class Peer:
    """A Python process that serves `steps N` requests on its standard input; see `serve`.

    Args:
      module: what it runs.
      arguments: its command line.
      env: environment variables to set.
      python: its interpreter; this one by default.
      machine: where it runs; this machine by default.
      wait: whether it must be ready now, or `wait` is called later: those that start together wait for each other.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
        machine: Machine | None = None,
        *,
        wait: bool = True,
    ) -> None:
        command = [*(machine.within if machine else ()), python, "-m", module, *arguments]
        self._buffer = b""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            env={**inherited(), "TF_CPP_MIN_LOG_LEVEL": "3", **(env or {})},
        )
        if wait:
            self.wait()

    def wait(self) -> None:
        """Waits until it is ready."""
        self.names: list[str] = self._read()["names"]

    def steps(self, name: str, count: int) -> tuple[float, float]:
        """Runs `count` steps of contender `name`; returns seconds a step and the last loss."""
        self.ask(name, count)
        return self.answer()

    def ask(self, name: str, count: int) -> None:
        """Starts `count` steps of contender `name`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"name": name, "count": count}).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> tuple[float, float]:
        """Waits for the steps: seconds a step, and the last loss."""
        answer = self._read()
        return answer["seconds"], answer["loss"]

    def close(self) -> None:
        """Ends the process; a second time does nothing."""
        self.hang_up()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(DEADLINE_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def hang_up(self) -> None:
        """Lets the process end, without waiting for it."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def _read(self) -> dict[str, Any]:
        """The next line that is an answer; libraries print lines of their own."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            line, found, self._buffer = self._buffer.partition(b"\n")
            if not found:
                self._buffer = line
                self._receive(deadline)
            elif line.startswith(b"{"):
                return json.loads(line)

    def _receive(self, deadline: float) -> None:
        """Waits for more output."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            ready = selector.select(max(0.0, deadline - time.monotonic()))
        more = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
        self._buffer += more
        if more:
            return
        what = "ended" if ready else f"did not answer in {DEADLINE_S:.0f} s"
        self._process.kill()
        code = self._process.wait(DEADLINE_S)
        self._log.seek(0)
        told = self._log.read()[-4000:].decode(errors="replace")
        self.close()
        raise RuntimeError(f"the peer {self._process.args} {what} (exit code {code}):\n{told}")


class Group:
    """Processes that form a cluster, each described by `TF_CONFIG`, and take every step together.

    Args:
      workers: how many.
      module: what each runs.
      arguments: the command line of each.
      env: environment variables to set.
      python: their interpreter; this one by default.
      machines: where they run, in turn; this machine by default.
      wait: whether they must be ready now, as for `Peer`.
    """

    def __init__(
        self,
        workers: int,
        module: str,
        arguments: Sequence[str],
        env: Mapping[str, str] | None = None,
        python: str = sys.executable,
        machines: Sequence[Machine] = (),
        *,
        wait: bool = True,
    ) -> None:
        places = [machines[rank % len(machines)] if machines else None for rank in range(workers)]
        ports = free_ports(workers)
        addresses = [
            f"{place.address if place else '127.0.0.1'}:{port}" for place, port in zip(places, ports, strict=True)
        ]
        self._members: list[Peer] = []
        try:
            for rank, place in enumerate(places):
                task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
                own = {**(env or {}), "TF_CONFIG": json.dumps(task)}
                if place:
                    own["GLOO_SOCKET_IFNAME"] = place.name  # PyTorch would take the address of the host's name
                self._members.append(Peer(module, arguments, own, python, place, wait=False))
            if wait:
                self.wait()
        except BaseException:
            self.close()
            raise

    def wait(self) -> None:
        """Waits until all are ready."""
        for member in self._members:
            member.wait()

    def steps(self, name: str, count: int) -> tuple[float, float]:
        """Runs `count` steps on all; returns the slowest one's seconds a step, and the loss, which must be equal."""
        for member in self._members:
            member.ask(name, count)
        answers = [member.answer() for member in self._members]
        losses = [loss for _, loss in answers]
        assert max(losses) - min(losses) <= 1e-5 * max(map(abs, losses)), f"{name}: the workers' losses are {losses}"
        return max(seconds for seconds, _ in answers), losses[0]

    def close(self) -> None:
        """Ends the processes, which may wait for each other to."""
        self.hang_up()
        for member in self._members:
            member.close()

    def hang_up(self) -> None:
        """Lets the processes end, without waiting for them."""
        for member in self._members:
            member.hang_up()


def inherited() -> dict[str, str]:
    """This process's environment variables without those that would change what is measured."""
    return {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def serve(contenders: Mapping[str, Any]) -> None:
    """Answers a `Peer`'s requests until it closes: each contender is a function `(count) -> (seconds, loss)`."""
    print(json.dumps({"names": list(contenders)}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        seconds, loss = contenders[request["name"]](request["count"])
        print(json.dumps({"seconds": seconds, "loss": loss}), flush=True)


def alternate(
    contenders: Sequence[tuple[Peer | Group, str, str]],
    *,
    steps: int,
    rounds: int,
    warmup: int = 2,
    check_steps: int | None = None,
    lead: int = 0,
    tolerance: float = 1e-5,
    unchecked: Sequence[str] = (),
    few: Mapping[str, int] | None = None,
) -> list[Result]:
    """Lets contenders `(peer, name in the peer, label)` take turns.

    Args:
      contenders: who takes part.
      steps: steps a turn.
      rounds: counted turns of each.
      warmup: turns of each that are not counted; the losses after them must agree.
      check_steps: steps of the first of these turns, after which the losses must agree too; `steps` by default.
      lead: steps at the start of each turn that are not counted.
      tolerance: how far losses may be from those of the first contender that is checked, relative.
      unchecked: labels of contenders whose maths is different on purpose.
      few: the most steps that some take in any turn, by their labels, as one of theirs takes seconds.

    Raises:
      AssertionError: the contenders' losses differ, after the first turn or at the end of the warm-up.
    """
    results = [Result(label) for _, _, label in contenders]

    def check() -> None:
        checked = [result for result in results if result.name not in unchecked]
        for result in checked:
            first = checked[0].loss
            close = abs(result.loss - first) <= tolerance * max(abs(first), 1e-3)
            assert close, f"{result.name}: loss {result.loss}, not {first}"

    def taken(label: str, wanted: int) -> int:
        return min(wanted, (few or {}).get(label, wanted))

    for turn in range(warmup):
        for result, (peer, name, label) in zip(results, contenders, strict=True):
            result.loss = peer.steps(name, taken(label, check_steps if check_steps and turn == 0 else steps))[1]
            result.first_loss = result.loss if turn == 0 else result.first_loss
        check()
    order, shuffler = list(zip(results, contenders, strict=True)), random.Random(0)
    for _ in range(rounds):
        shuffler.shuffle(order)
        for result, (peer, name, label) in order:
            if lead:
                peer.steps(name, taken(label, lead))
            seconds, result.loss = peer.steps(name, taken(label, steps))
            result.seconds.append(seconds)
    return results


def ratio(numerator: Result, denominator: Result) -> float:
    """Median over the rounds of the ratio of their turns."""
    return median_ratio(numerator.seconds, denominator.seconds)


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Median over the rounds of the ratio of two figures."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))
