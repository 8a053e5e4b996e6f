"""Ways to start a program: as a job from its start to its exit code, or in place of this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from jaxtribute._src.addons.launcher.environment import LAUNCHER, TF_CONFIG, tf_config
from jaxtribute._src.addons.launcher.escalation import Signal
from jaxtribute._src.addons.launcher.follower import Follower
from jaxtribute._src.addons.launcher.gpus import gpu_settings
from jaxtribute._src.addons.launcher.islands import IslandsLauncher
from jaxtribute._src.addons.launcher.leader import Leader
from jaxtribute._src.addons.launcher.options import Options
from jaxtribute._src.addons.launcher.terminal import open_terminal
from jaxtribute._src.addons.resolvers.slurm import COUNTS, TASKS, SlurmClusterResolver, expand_counts
from jaxtribute.errors import MissingLibraryError
from jaxtribute.extending import Folder


def launch(options: Options) -> int:
    """Runs the job, or this machine's part of it, and returns the exit code. Call it in the main thread.

    Raises:
      DeadlineError: other machines did not come in time.
      ClusterError: machine 0 cannot be reached in the way that was asked for.
      ArgumentError: the workers cannot divide this machine's GPUs.
      MissingLibraryError: the job is for Ray, which is not installed.
    """
    if options.ray is None:
        gpu_settings(options, 0, {**os.environ, **options.variables})  # before the other machines are waited for
    with _kept_programs(options) as complete:
        return asyncio.run(_launch(complete))


@contextmanager
def _kept_programs(options: Options) -> Generator[Options]:
    """Gives a job that may start again a folder for its compiled programs, which goes when the job has ended."""
    # Where it starts once, nothing is compiled for a second time; each worker on Ray makes its own.
    if options.ray is not None or (not options.max_restarts and not options.preemptions):
        yield options
        return
    with closing(Folder()) as folder:
        yield replace(options, programs=Path(folder.path))


async def _launch(options: Options) -> int:
    launcher = _launcher(options)
    loop = asyncio.get_running_loop()
    async with open_terminal() as terminal:

        def end(number: Signal) -> None:
            launcher.forward(number)
            terminal.hurry()

        handlers: dict[Signal, Callable[[], None]] = {}
        for number in (Signal.SIGINT, Signal.SIGTERM, Signal.SIGQUIT):
            handlers[number] = partial(end, number)
        # A terminal that closes takes the job along, and lets it save before.
        handlers[Signal.SIGHUP] = partial(end, Signal.SIGTERM)
        handlers[Signal.SIGUSR1] = launcher.grow
        handlers[Signal.SIGWINCH] = launcher.resize
        # Called by the loop between two steps, so that none is interrupted in its middle.
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        return await launcher.run()


def _launcher(options: Options) -> Leader | Follower | IslandsLauncher:
    if options.ray is not None:
        if find_spec("ray") is None:
            raise MissingLibraryError(
                "--ray needs Ray. HINT: pip install -e '.[ray]' in a clone, of the cluster's version."
            )
        from jaxtribute._src.addons.launcher.ray_cluster import RayLeader

        return RayLeader(options)
    if options.min_islands is not None:
        return IslandsLauncher(options, options.min_islands)
    return Leader(options) if options.node_rank == 0 else Follower(options)


def become(command: tuple[str, ...], environment: dict[str, str]) -> None:
    """Turns this process into the program; does not return."""
    # In place of this process: signals, the exit code and the number are the program's own.
    os.execvpe(command[0], command, environment)


def rank_set_by_slurm(environment: Mapping[str, str] | None = None) -> bool:
    """True if Slurm has started several tasks on a machine, so that each of them is a rank already."""
    environment = os.environ if environment is None else environment
    return bool(environment.get(TASKS)) and max(expand_counts(environment.get(COUNTS, "1"))) > 1


def slurm_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for the program of a task that Slurm has started as a rank.

    Raises:
      ClusterSpecError: Slurm's variables are incomplete or contradict each other.
    """
    found = dict(os.environ if environment is None else environment)
    resolver = SlurmClusterResolver(environ=found)
    spec = resolver.cluster_spec()  # which also sets the GPUs of this task in `found`
    return found | {TF_CONFIG: tf_config(spec.as_dict(), resolver.task_type, resolver.task_id), LAUNCHER: "1"}
