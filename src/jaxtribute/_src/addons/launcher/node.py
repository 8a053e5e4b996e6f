"""This machine's part of a job: its ports and its ranks."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jaxtribute._src.addons.launcher.attempt import Attempt, Outcome, Program
from jaxtribute._src.addons.launcher.certificates import VARIABLES, secret_of_run, write_certificates
from jaxtribute._src.addons.launcher.compilation_cache import cache_environment
from jaxtribute._src.addons.launcher.environment import RESTART, chief_environment, rank_environment
from jaxtribute._src.addons.launcher.escalation import Signal
from jaxtribute._src.addons.launcher.gpus import gpu_settings
from jaxtribute._src.addons.launcher.last_calls import LastCalls
from jaxtribute._src.addons.launcher.options import Options
from jaxtribute._src.addons.launcher.output import RankOutput, open_log
from jaxtribute._src.addons.launcher.terminal import say
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import Address, Folder

LOOPBACK = "127.0.0.1"


class ReservedPorts:
    """Ports chosen by the kernel and kept until `close()`, though a process of this user may listen on them meanwhile.

    Each is bound and does not listen, with `SO_REUSEPORT`: JAX's coordination service, which sets it too, can listen
    there, while the kernel gives the port to nobody who asks for a free one.

    Args:
      count: how many.
      host: the address of this machine that they are reserved on.
      first: the first of them, if they are given; 0 lets the kernel choose.

    Raises:
      ArgumentError: another process has one that is given, or this machine has no such address.
    """

    def __init__(self, count: int, host: str = LOOPBACK, first: int = 0) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        given = range(first, first + count) if first else ()
        for port in given:
            _check_free(family, host, port)
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket(family)) for _ in range(count)]
            # Bound at once, all of them: closed one by one, the kernel would give the same port again.
            for one, port in zip(sockets, given or [0] * count, strict=True):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                one.bind((host, port))
            self.numbers: tuple[int, ...] = tuple([one.getsockname()[1] for one in sockets])
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Gives the ports back; again is harmless."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _check_free(family: socket.AddressFamily, host: str, port: int) -> None:
    # Under SO_REUSEPORT two jobs of a user could listen on one port, each given some of the other's connections.
    with socket.socket(family) as alone:
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what has ended a while ago is no matter
        try:
            alone.bind((host, port))
        except (OSError, OverflowError) as error:
            raise ArgumentError(
                f"nothing can listen at {Address(host, port)}: {error}. HINT: each job needs ports of its own: give "
                "another --port, the same on all machines; and --hosts must name, at --node-rank, an address of this "
                "machine."
            ) from error


@dataclass(frozen=True)
class Start:
    """Facts that a machine needs to start its ranks.

    Attributes:
      addresses: of all ranks.
      first: the first rank of this machine.
      count: how many ranks it has.
      restart: how often the job has been started before.
      run: a random number of this start, in letters; empty without one.
    """

    addresses: Sequence[str]
    first: int
    count: int
    restart: int
    run: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain data for another launcher."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Reads the result of `as_json`."""
        return cls(**data)


class LocalNode:
    """This machine's ranks, from one start of the job to the next.

    Args:
      options: what was asked for.
      host: the address of this machine that the others know.
    """

    def __init__(self, options: Options, host: str) -> None:
        self.options, self.host = options, host
        self.workers = options.workers
        self._ports: ReservedPorts | None = None
        self._attempt: Attempt | None = None

    def reserve(self, first: int = 0) -> list[str]:
        """Addresses for the ranks of the next start, with ports that stay theirs until it has ended.

        Args:
          first: see `ReservedPorts`.

        Raises:
          ArgumentError: likewise.
        """
        self.close()
        self._ports = ReservedPorts(self.workers, self.host, first)
        return [str(Address(self.host, port)) for port in self._ports.numbers]

    async def run(self, start: Start) -> Outcome:
        """Starts the ranks and waits until all have ended."""
        # Its files are its owner's alone to read; what a launcher that is killed leaves, the next one removes.
        with contextlib.closing(Folder()) as folder:
            secret = secret_of_run(self.options, start.run) if len(start.addresses) > 1 else None
            certificates = {} if secret is None else write_certificates(secret, Path(folder.path))
            programs = {start.first + i: self.program(start, i, certificates) for i in range(start.count)}
            calls = LastCalls(Path(folder.path))
            for rank, program in programs.items():
                program.environment = {**program.environment, **calls.environment(rank)}
            self._attempt = Attempt(programs, self.options.grace_s, self.options.save_s, calls.read)
            try:
                return await self._attempt.run()
            finally:
                self._attempt = None

    def stop(self) -> None:
        """Ends the ranks because of a failure elsewhere."""
        if self._attempt is not None:
            self._attempt.stop()

    def forward(self, number: Signal) -> None:
        """Hands a signal on to the ranks."""
        if self._attempt is not None:
            self._attempt.forward(number)

    def resize(self) -> None:
        """Passes on that the terminal has another size."""
        if self._attempt is not None:
            self._attempt.resize()

    def close(self) -> None:
        """Gives the ports back."""
        if self._ports is not None:
            self._ports.close()
            self._ports = None

    def program(self, start: Start, index: int, certificates: Mapping[str, str]) -> Program:
        """The program of a rank of this machine.

        Args:
          start: the start of the job.
          index: the rank among those of this machine.
          certificates: the environment that tells of them.
        """
        rank, options = start.first + index, self.options
        environment = rank_environment(start.addresses, rank, options.devices)
        # Unbuffered, since the last lines before a crash are those that tell of it.
        environment |= {"PYTHONUNBUFFERED": "1", RESTART: str(start.restart), **certificates, **options.variables}
        if options.programs is not None:
            environment |= cache_environment(str(options.programs), environment)
        for name in VARIABLES:
            if not environment.get(name, "set"):
                del environment[name]  # JAX would take it for half of a setting
        if options.served is not None:
            environment |= chief_environment(start.addresses[rank], *options.served)
        environment |= gpu_settings(options, index, environment)
        terminal = rank == 0 and sys.stdout is not None and sys.stdout.isatty()
        # A progress bar is drawn with more than lines, so a prefix has no place in it.
        bare = terminal or (options.split and rank == 0)
        output = RankOutput(
            None if bare else f"[{rank}] ".encode(), shown=rank == 0 or not options.split, log=self._log(start, rank)
        )
        return Program(options.command, environment, output, terminal=terminal)

    def _log(self, start: Start, rank: int) -> FileIO | None:
        directory = self.options.log_dir
        try:
            return open_log(directory, rank, start.restart)
        except OSError as error:
            why = f"--log-dir {directory}: the log of rank {rank} cannot be written: {error.strerror or error}"
            hint = "HINT: name a folder that this user may write to."
            if start.restart == 0:
                raise ArgumentError(f"{why}. {hint}") from error
            # What has trained for hours does not end because of it.
            say(f"{why}. The job goes on without it. {hint}")
            return None
