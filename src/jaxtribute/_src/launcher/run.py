"""A launch from its start to its exit code, with the signals that come meanwhile."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from jaxtribute._src.launcher.attempt import Signal
from jaxtribute._src.launcher.follower import Follower
from jaxtribute._src.launcher.leader import Leader
from jaxtribute._src.launcher.options import Options


def launch(options: Options) -> int:
    """Runs the job, or this machine's part of it, and returns the exit code. Call it in the main thread.

    Raises:
        DeadlineError: Other machines did not come in time.
        ClusterError: Machine 0 cannot be reached in the way that was asked for.
        ArgumentError: There are not enough GPUs.
    """
    return asyncio.run(_launch(options))


async def _launch(options: Options) -> int:
    launcher = Leader(options) if options.node_rank == 0 else Follower(options)
    loop = asyncio.get_running_loop()
    handlers: dict[Signal, Callable[[], None]] = {
        number: lambda number=number: launcher.forward(number)
        for number in (Signal.SIGINT, Signal.SIGTERM, Signal.SIGQUIT)
    }
    handlers[Signal.SIGHUP] = lambda: launcher.forward(Signal.SIGTERM)
    handlers[Signal.SIGUSR1] = launcher.grow
    handlers[Signal.SIGWINCH] = launcher.resize
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    return await launcher.run()


def become(command: tuple[str, ...], environment: dict[str, str]) -> None:
    """Turns this process into the program; does not return."""
    os.execvpe(command[0], command, environment)
