"""`PreemptionCheckpointHandler`: a training that saves when a machine is taken away, and goes on where it was."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from jaxtribute._src.checkpoint import committing
from jaxtribute._src.checkpoint.checkpoint import Checkpoint
from jaxtribute._src.checkpoint.manager import CheckpointManager
from jaxtribute._src.checkpoint.preemption.notice import Notice
from jaxtribute._src.checkpoint.preemption.rounds import Rounds
from jaxtribute._src.checkpoint.preemption.termination import TerminationConfig, exit_to_resume
from jaxtribute._src.cluster.watch import say
from jaxtribute.errors import ArgumentError, ArgumentTypeError

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

    Source: `tf.distribute.experimental.PreemptionCheckpointHandler`.
    """

    def __init__(
        self,
        cluster_resolver: Any,
        checkpoint_or_checkpoint_manager: Checkpoint | CheckpointManager,
        checkpoint_dir: Any = None,
        termination_config: TerminationConfig | None = None,
    ) -> None:
        del cluster_resolver  # the strategy has joined the cluster that it describes
        self._manager = _manager(checkpoint_or_checkpoint_manager, checkpoint_dir)
        self._config = termination_config or TerminationConfig()
        cluster = self._cluster = committing.cluster()
        self._rounds = Rounds(cluster)
        self._whom = ""
        self._heard_at = 0.0
        self._run_s = 0.0
        self._saved = False
        self._notice = Notice(cluster, self._config.termination_watcher_fn, self._heard)
        self._restored = self._manager.restore_or_initialize()
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
        self._manager.wait()
        self._report("saved", path)
        if self._cluster is None or self._cluster.rank == 0:
            say(f"saved {path} after {self.total_run_calls} calls of run, since {self._whom}")

    def _extra_rounds(self, save_s: float) -> int:
        """Number of further calls that there is time for, before a second save; the first worker decides for all."""
        left = (self._config.grace_period or 0.0) - (time.monotonic() - self._heard_at) - (1 + _MARGIN) * save_s
        more = int(max(0.0, left) / self._run_s) if self._run_s else 0
        if self._cluster is None:
            return more
        return int(self._cluster.exchange("rounds after a notice", str(more))[0])

    def _report(self, event: str, path: Any) -> None:
        target = os.environ.get(REPORT)
        if target and (self._cluster is None or self._cluster.rank == 0):
            entry = {"event": event, "checkpoint": path and str(path), "runs": self.total_run_calls}
            with Path(target).open("a") as file:
                file.write(json.dumps(entry) + "\n")


def _manager(given: Any, directory: Any) -> CheckpointManager:
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
