"""Functions run in several processes that form a cluster on this machine: for tests and notebooks."""

from __future__ import annotations

import contextlib
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from types import TracebackType
from typing import IO, Any, Self

from jaxtribute._src.addons.launcher.environment import rank_environment
from jaxtribute._src.addons.launcher.family import Family, Process
from jaxtribute._src.addons.launcher.node import LOOPBACK, ReservedPorts
from jaxtribute._src.addons.testing.messages import Answer, encode_call
from jaxtribute.errors import DeadlineError, ProcessFailedError
from jaxtribute.extending import settings

STACKS_S = 2.0
"""Seconds that a process past its deadline may take to print the stacks of its threads."""
SHUTDOWN_S = 10.0
"""Seconds that processes may take to end once nobody needs them."""


@dataclass(frozen=True, slots=True)
class Exited:
    """The result of a rank that was allowed to die, and did.

    Attributes:
        code: Its exit code; -9 where it was killed by signal 9.
    """

    code: int


@dataclass
class _Rank:
    process: Process
    connection: Connection
    output: IO[bytes]
    start: int = 0
    """Position in the output at which the present call begins."""


def run_multi_process(
    fn: Callable[..., Any],
    *,
    workers: int = 2,
    devices: int | None = 1,
    timeout_s: float = 120.0,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    lost: Collection[int] = (),
) -> list[Any]:
    """Runs a function in several new processes, which `TF_CONFIG` describes as one cluster.

        def total():
            strategy = jd.MultiWorkerMirroredStrategy()
            ...

        first, second = jd.testing.run_multi_process(total, workers=2, devices=2)

    Args:
        fn: The function. Its module must do without side effects, since each process imports it. A function without an
            importable name (a lambda, one of a notebook) takes cloudpickle, the extra `jaxtribute[testing]`.
        workers: The number of processes.
        devices: Logical CPU devices a process; `None` leaves it the devices that it finds.
        timeout_s: Seconds from the start to the last result.
        args: Arguments, the same for every rank.
        kwargs: Keyword arguments, the same for every rank.
        env: Environment variables to set in the processes.
        lost: Ranks that may die: the result of one that does is an `Exited`.

    Returns:
        What `fn` returned, by rank; arrays of JAX come as arrays of NumPy.

    Raises:
        ProcessFailedError: A rank raised, or died; with its traceback and all output of every rank.
        DeadlineError: Ranks did not finish in time; with the stacks of their threads, and all output.

    Source: `tf.__internal__.distribute.multi_process_runner.run`.
    """
    settings.function("fn", fn)
    with MultiProcessRunner(workers, devices, timeout_s=timeout_s, env=env) as runner:
        return runner.run(fn, args, kwargs, lost=lost)


class MultiProcessRunner:
    """Processes that form a cluster on this machine and run one function after the other.

    It saves the seconds that starting JAX takes for each function of a test suite:

        with jd.testing.MultiProcessRunner(workers=2, devices=2) as runner:
            runner.run(first_test)
            runner.run(second_test, args=(3,))

    The processes keep their state from call to call. After a call that left one of them dead or stuck, the next call
    starts all again.

    Args:
        workers: The number of processes.
        devices: Logical CPU devices a process; `None` leaves it the devices that it finds.
        timeout_s: Seconds that a call may take, the start of the processes included.
        grace_s: Seconds that the others are given to finish once one rank has failed.
        env: Environment variables to set in the processes.
        setup: What each process calls once, before its first call.

    Raises:
        ArgumentError: `workers` or `devices` is less than 1.

    Source: `tf.__internal__.distribute.multi_process_runner.MultiProcessPoolRunner`.
    """

    workers: int
    devices: int | None

    def __init__(
        self,
        workers: int = 2,
        devices: int | None = 1,
        *,
        timeout_s: float = 120.0,
        grace_s: float = 5.0,
        env: Mapping[str, str] | None = None,
        setup: Callable[[], object] | None = None,
    ) -> None:
        settings.whole("workers", workers, 1)
        settings.whole("devices", devices, 1, optional=True)
        settings.amount("timeout_s", timeout_s, above=True)
        settings.amount("grace_s", grace_s)
        self.workers, self.devices = workers, devices
        self._timeout_s, self._grace_s, self._env = timeout_s, grace_s, dict(env or {})
        self._setup, self._is_set_up = settings.function("setup", setup, optional=True), False
        self._family: Family | None = None
        self._ports: ReservedPorts | None = None
        self._ranks: list[_Rank] = []
        self._outputs: list[str] = [""] * workers

    def start(self) -> None:
        """Starts the processes, without waiting for them, unless they run."""
        if self._family is not None:
            return
        self._family, self._ports = Family(), ReservedPorts(self.workers)
        addresses = [f"{LOOPBACK}:{port}" for port in self._ports.numbers]
        for rank in range(self.workers):
            here, there = Pipe()
            output = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close())
            # With faulthandler a SIGABRT makes it print the stacks of its threads.
            command = [
                sys.executable,
                "-X",
                "faulthandler",
                "-m",
                "jaxtribute._src.addons.testing.child",
                str(there.fileno()),
            ]
            environment = {**rank_environment(addresses, rank, self.devices), **self._env}
            process = self._family.start(command, environment, output, pass_fds=[there.fileno()])
            # Open here, too, it would hide the end of the process, which is the end of the connection.
            there.close()
            self._ranks.append(_Rank(process, here, output))

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of all processes of this runner; none before it has started."""
        return () if self._family is None else self._family.pids

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        lost: Collection[int] = (),
    ) -> list[Any]:
        """Runs a function in every process; returns the results by rank.

        Args:
            fn: The function; see `run_multi_process`.
            args: Arguments, the same for every rank.
            kwargs: Keyword arguments, the same for every rank.
            timeout_s: Seconds that this call may take.
            lost: Ranks that may die: the result of one that does is an `Exited`.

        Raises:
            ProcessFailedError: A rank raised, or died; with its traceback and all output of every rank.
            DeadlineError: Ranks did not finish in time; with the stacks of their threads, and all output.
        """
        settings.function("fn", fn)
        request = encode_call(fn, tuple(args), kwargs or {})
        limit = self._timeout_s if timeout_s is None else timeout_s
        self.start()
        if self._setup is not None and not self._is_set_up:
            # Marked first, as `run` comes by here again.
            self._is_set_up = True
            self.run(self._setup)
        for rank in self._ranks:
            # One file holds the output of all calls; that of this one begins at its end.
            rank.start = rank.output.seek(0, 2)
            _send(rank.connection, request)
        try:
            answers = self._collect(limit, lost)
        # Answers that came later would be taken for those of the next call.
        except BaseException:
            self.kill()
            raise
        self._outputs = list(map(self._read, self._ranks))
        name = getattr(fn, "__qualname__", repr(fn))
        if len(answers) < self.workers:
            raise self._give_up(name, answers, lost, limit)
        failure = self._first_failure(name, answers, lost)
        # A cluster without one of its ranks is of no use to the next call.
        if any(isinstance(answer, Exited) for answer in answers.values()):
            self.kill()
        if failure is not None:
            raise failure
        return [_value(answers[rank]) for rank in range(self.workers)]

    def output(self, rank: int) -> str:
        """Output of that rank during the last call, standard output and error together.

        Args:
            rank: From 0 up.
        """
        return self._outputs[rank]

    def kill(self) -> None:
        """Kills the processes; the next call starts new ones."""
        if self._family is not None:
            self._family.close()
        self._release()

    def close(self) -> None:
        """Lets the processes end, and kills those that do not within 10 seconds. Again is harmless."""
        # A process ends where its connection does.
        for rank in self._ranks:
            rank.connection.close()
        if self._family is not None:
            self._family.wait(SHUTDOWN_S)
        self.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _release(self) -> None:
        for rank in self._ranks:
            rank.connection.close()
            rank.output.close()
        if self._ports is not None:
            self._ports.close()
        self._family, self._ports, self._ranks = None, None, []
        self._is_set_up = False

    def _collect(self, limit_s: float, lost: Collection[int]) -> dict[int, Answer | Exited]:
        """The answers by rank in the order of their coming; incomplete where time ran out."""
        found: dict[int, Answer | Exited] = {}
        end = time.monotonic() + limit_s
        waiting: dict[Any, int] = {rank.connection: index for index, rank in enumerate(self._ranks)}
        while waiting:
            ready = wait(list(waiting), max(end - time.monotonic(), 0))
            if not ready:
                break
            for connection in ready:
                rank = waiting.pop(connection)
                found[rank] = self._receive(self._ranks[rank])
                if _failed(found[rank], rank, lost):
                    # The others may wait for this one for ever.
                    end = min(end, time.monotonic() + self._grace_s)
        return found

    @staticmethod
    def _receive(rank: _Rank) -> Answer | Exited:
        try:
            return pickle.loads(rank.connection.recv_bytes())
        # The process alone holds the other end, so the end of the connection is its own.
        except (EOFError, ConnectionError):
            return Exited(rank.process.wait())

    def _read(self, rank: _Rank) -> str:
        rank.output.seek(rank.start)
        return rank.output.read().decode(errors="replace")

    def _give_up(
        self, name: str, answers: Mapping[int, Answer | Exited], lost: Collection[int], limit_s: float
    ) -> Exception:
        """Ends the processes of a call that some rank does not finish; what is known of it."""
        missing = [rank for rank in range(self.workers) if rank not in answers]
        # What the others say when these end is no part of the story.
        self._outputs = list(map(self._read, self._ranks))
        for rank in missing:  # faulthandler prints the stacks
            self._ranks[rank].process.send_signal(signal.SIGABRT)
        end = time.monotonic() + STACKS_S
        for rank in missing:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._ranks[rank].process.wait(max(end - time.monotonic(), 0))
            self._outputs[rank] = self._read(self._ranks[rank])
        self.kill()
        return self._first_failure(name, answers, lost) or DeadlineError(
            f"{_ranks(missing)} of {self.workers} did not finish {name} within {limit_s:g} s. "
            f"HINT: the stacks below show where it was; give timeout_s where it needs longer.\n{self._all_outputs()}"
        )

    def _first_failure(
        self, name: str, answers: Mapping[int, Answer | Exited], lost: Collection[int]
    ) -> ProcessFailedError | None:
        # In the order of their coming: what failed first is likely the cause of the rest.
        for rank, answer in answers.items():
            if not _failed(answer, rank, lost):
                continue
            if isinstance(answer, Exited):
                what, more = f"ended with exit code {answer.code}", ""
            else:
                what, more = f"raised {answer.error}", f"\n{answer.traceback.rstrip()}"
            return ProcessFailedError(
                f"rank {rank} of {self.workers} {what} in {name}.{more}\n{self._all_outputs()}", rank=rank
            )
        return None

    def _all_outputs(self) -> str:
        return "\n".join(
            f"--- output of rank {rank}\n{text.rstrip() or '(nothing)'}" for rank, text in enumerate(self._outputs)
        )


def _failed(answer: Answer | Exited, rank: int, lost: Collection[int]) -> bool:
    return rank not in lost if isinstance(answer, Exited) else bool(answer.error)


def _send(connection: Connection, request: bytes) -> None:
    # If it has died, that comes out when its answer is waited for.
    with contextlib.suppress(ConnectionError):
        connection.send_bytes(request)


def _value(answer: Answer | Exited) -> Any:
    return pickle.loads(answer.value) if isinstance(answer, Answer) else answer


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
