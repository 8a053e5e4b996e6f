"""Preemption: all workers save once, at one step, and end so that they are started again."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

from jaxtribute import Checkpoint, CheckpointManager
from jaxtribute._src.addons.preemption.agreement import NoticeListener, Rounds, read_notice
from jaxtribute.errors import ArgumentError, ArgumentTypeError, CheckpointError, DeadlineError
from jaxtribute.extending import Cluster, ExitCode, points, saving_cluster, settings


def exit_to_resume() -> NoReturn:
    """Ends the program with the exit code that asks the launcher to start it again."""
    sys.exit(int(ExitCode.RESUME))


@dataclass(frozen=True)
class TerminationConfig:
    """Settings of a `PreemptionCheckpointHandler`.

    Args:
      termination_watcher_fn: asked every second, in a thread of its own, whether this machine is about to be taken
        away; for platforms that say so by other means than SIGTERM, which always counts.
      exit_fn: called on every worker once the checkpoint is complete. By default the program ends with exit code 75,
        on which `jaxtribute launch --max-restarts` starts it again.
      grace_period: seconds from the notice to the end of the machine. With more than 0 the workers save at once, train
        on as long as time allows, and save again; by default they save once.
      save_fn: called instead of the manager's `save`, with the arguments of `save_checkpoint_if_preempted`.

    Raises:
      ArgumentError: a negative grace period.
      ArgumentTypeError: a grace period that is no number, or a function that is none.

    Source: `tf.distribute.experimental.TerminationConfig`.
    """

    termination_watcher_fn: Callable[[], bool] | None = None
    exit_fn: Callable[[], Any] | None = None
    grace_period: float | None = None
    save_fn: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        settings.amount("grace_period", self.grace_period, optional=True)
        for name in ("termination_watcher_fn", "exit_fn", "save_fn"):
            settings.function(name, getattr(self, name), optional=True)


REPORT = "JAXTRIBUTE_PREEMPTION_REPORT"
"""Names a file where the first worker notes each start and each save at a preemption; for rehearsals."""
_MARGIN = 0.2

P = ParamSpec("P")
R = TypeVar("R")


class PreemptionCheckpointHandler:
    """Saves on SIGTERM to any worker, at one step of all, and lets the program be started again.

    Making it restores the newest checkpoint of the manager's folder, if there is one.

        handler = jd.experimental.PreemptionCheckpointHandler(strategy.cluster_resolver, manager)
        for _ in range(handler.total_run_calls, steps):
            handler.run(train_step, iterator)

    Args:
      cluster_resolver: the strategy's `cluster_resolver`; None for one process.
      checkpoint_or_checkpoint_manager: what is saved. Of a `Checkpoint` the newest is kept in `checkpoint_dir`.
      checkpoint_dir: a folder, for a `Checkpoint`.
      termination_config: what happens at a preemption.

    In a cluster every worker makes it, in the main thread, and makes the same calls in the same order.

    Raises:
      ArgumentError: a `Checkpoint` without a folder, or a manager with one.
      ArgumentTypeError: neither of both.
      ContextError: not in the main thread.
      CheckpointMismatchError: the newest checkpoint does not fit.
      CheckpointError: nothing can be saved in the folder.
      NotImplementedError: under `ElasticStrategy`.

    Source: `tf.distribute.experimental.PreemptionCheckpointHandler`.
    """

    def __init__(
        self,
        cluster_resolver: object,
        checkpoint_or_checkpoint_manager: Checkpoint | CheckpointManager,
        checkpoint_dir: str | PathLike[str] | None = None,
        termination_config: TerminationConfig | None = None,
    ) -> None:
        del cluster_resolver  # the strategy has joined the cluster that it describes
        if any(find() is not None for find in points.TOGETHER.entries()):
            raise NotImplementedError(
                "PreemptionCheckpointHandler under ElasticStrategy: islands that are preempted are replaced, and the "
                "others go on. HINT: save every so many steps, with jd.CheckpointManager on all islands."
            )
        self._manager = _manager(checkpoint_or_checkpoint_manager, checkpoint_dir)
        self._config = termination_config or TerminationConfig()
        cluster = self._cluster = saving_cluster()
        self._rounds = Rounds(cluster)
        self._whom = ""
        self._heard_at = 0.0
        self._run_s = 0.0
        self._saved = False
        # Before the restore: a signal that comes while it runs would otherwise end the program without a word.
        self._notice = NoticeListener(cluster, self._config.termination_watcher_fn, self._heard)
        try:
            self._restored = self._manager.restore_or_initialize()
            if self._manager.read_only:
                raise CheckpointError(
                    f"nothing can be saved in {self._manager.directory}, and all would be lost at a preemption: "
                    f"{self._manager.read_only}. HINT: let this user write there, or name another folder."
                )
        except BaseException:
            self._notice.close()  # who has no handler hears signals as before
            raise
        self._report("start", self._restored)

    @property
    def total_run_calls(self) -> int:
        """Number of calls of `run` that have ended, those before a restart included.

        Source: `tf.distribute.experimental.PreemptionCheckpointHandler.total_run_calls`.
        """
        return self._manager.checkpoint.run_counter

    @property
    def preempted(self) -> bool:
        """True if some worker is known to be about to go."""
        return bool(self._whom)

    def run(self, distributed_train_function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls a function, typically one training step; after it, saves and ends if it is time to.

        Args:
          distributed_train_function: a function of a step or a few, long enough that agreeing costs nothing and
            short enough for the notice that machines give.
          args: its positional arguments.
          kwargs: its keyword arguments.

        Returns:
          What the function returns.

        Raises:
          CheckpointError: the checkpoint could not be saved.
          DeadlineError: a worker did not come to save.
          SystemExit: it was saved; exit code 75.

        Source: `tf.distribute.experimental.PreemptionCheckpointHandler.run`.
        """
        start = time.monotonic()
        result = distributed_train_function(*args, **kwargs)
        self._run_s = time.monotonic() - start
        self._manager.checkpoint.count("run_counter")
        # Not before the function: a batch among its arguments is then drawn already, and would be left out.
        self.save_checkpoint_if_preempted()
        return result

    def save_checkpoint_if_preempted(self, *args: Any, **kwargs: Any) -> None:
        """Saves and ends the program if all workers agree that this is the place; otherwise costs microseconds.

        Call it between steps, as often on every worker, also within an evaluation or a long preparation.

        Args:
          args: positional arguments for `save_fn`, or for the manager's `save`.
          kwargs: keyword arguments for it.

        It raises what `run` raises.

        Source: `tf.distribute.experimental.PreemptionCheckpointHandler.save_checkpoint_if_preempted`.
        """
        if not self._rounds.due():
            return
        start = time.monotonic()
        self._save(args, kwargs)
        # One second save at most: the program ends with it.
        more = 0 if self._saved else self._extra_rounds(time.monotonic() - start)
        self._saved = True
        if more:
            self._rounds.postpone(more)
            return
        self._rounds.finish()
        self._manager.close()  # the next start, maybe on another machine, finds that nobody owns the folder
        (self._config.exit_fn or exit_to_resume)()

    @contextmanager
    def watch_preemption_scope(self) -> Generator[None]:
        """Checks once more at its end, for loops that call `save_checkpoint_if_preempted` themselves.

        Source: `tf.distribute.experimental.PreemptionCheckpointHandler.watch_preemption_scope`.
        """
        yield
        self.save_checkpoint_if_preempted()

    def close(self) -> None:
        """Closes the manager, and listens no more: SIGTERM ends the program again. The program's end does the same."""
        self._notice.close()
        self._manager.close()

    def _heard(self, whom: str) -> None:
        self._heard_at, self._whom = time.monotonic(), whom
        self._rounds.learn()

    def _save(self, args: Any, kwargs: Any) -> None:
        """Saves to the end, and says so."""
        if self._config.save_fn is not None:
            path = self._config.save_fn(*args, **kwargs)
        else:
            path = self._manager.save(*args, **{"check_interval": False, **kwargs})
        # To its end: the program's own comes next.
        self._manager.wait()
        self._report("saved", path)
        if self._cluster is None or self._cluster.rank == 0:
            Cluster.say(f"saved {path} after {self.total_run_calls} calls of run, since {self._whom}")

    def _extra_rounds(self, save_s: float) -> int:
        """Number of further calls that there is time for, before a second save; the first worker decides for all."""
        # The second save must fit in as well, and may take longer than the first did.
        left = (self._config.grace_period or 0.0) - (time.monotonic() - self._heard_at) - (1 + _MARGIN) * save_s
        more = int(max(0.0, left) / self._run_s) if self._run_s else 0
        if self._cluster is None:
            return more
        return int(self._cluster.exchange("rounds after a notice", str(more))[0])

    def _report(self, event: str, path: object) -> None:
        target = os.environ.get(REPORT)
        if target and (self._cluster is None or self._cluster.rank == 0):
            entry = {"event": event, "checkpoint": path and str(path), "runs": self.total_run_calls}
            with Path(target).open("a") as file:
                file.write(json.dumps(entry) + "\n")


def _manager(given: object, directory: str | PathLike[str] | None) -> CheckpointManager:
    if isinstance(given, CheckpointManager):
        if directory is not None:
            raise ArgumentError(
                f"checkpoint_dir={directory!r} besides a CheckpointManager, whose folder is {given.directory}. "
                "HINT: leave it out."
            )
        return given
    if not isinstance(given, Checkpoint):
        raise ArgumentTypeError(
            f"checkpoint_or_checkpoint_manager is a {type(given).__name__}. HINT: pass a jd.Checkpoint or a "
            "jd.CheckpointManager."
        )
    if directory is None:
        raise ArgumentError(f"{given!r} has no folder. HINT: pass checkpoint_dir, or a jd.CheckpointManager.")
    return CheckpointManager(given, directory, max_to_keep=1)


_POLL_S = 0.1


class PreemptionWatcher:
    """Knows of a preemption that any worker has announced; some worker must have a `PreemptionCheckpointHandler`.

    Source: `tf.distribute.experimental.PreemptionWatcher`.
    """

    def __init__(self) -> None:
        self._cluster = saving_cluster()

    @property
    def preemption_message(self) -> str | None:
        """The worker that is to go and the reason, or None as long as nobody is.

        Source: `tf.distribute.experimental.PreemptionWatcher.preemption_message`.
        """
        known = self._known()
        return None if known is None or self._cluster is None else f"{self._cluster.names[known[0]]} {known[1]}"

    def block_until_worker_exit(self, timeout_s: float = 600.0) -> None:
        """Waits until the worker that is to go has gone; returns at once if there is none.

        Args:
          timeout_s: seconds to wait.

        Raises:
          DeadlineError: it is still there.

        Source: `tf.distribute.experimental.PreemptionWatcher.block_until_worker_exit`.
        """
        known, cluster = self._known(), self._cluster
        if known is None or cluster is None or known[0] == cluster.rank:
            return
        deadline = time.monotonic() + timeout_s
        while known[0] not in cluster.watch.left and cluster.watch.failure is None:
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"waited {timeout_s:g} s for {cluster.names[known[0]]}, which {known[1]}, to end. "
                    "HINT: see what it does; its program should end after its last checkpoint."
                )
            time.sleep(_POLL_S)

    def _known(self) -> tuple[int, str] | None:
        return None if self._cluster is None else read_notice(self._cluster)
