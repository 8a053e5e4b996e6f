"""`PreemptionWatcher`: whether a worker is about to be taken away, for programs that look themselves."""

from __future__ import annotations

import time

from jaxtribute._src.checkpoint import committing
from jaxtribute._src.checkpoint.preemption import notice
from jaxtribute.errors import DeadlineError

_POLL_S = 0.1


class PreemptionWatcher:
    """Knows of a preemption that any worker has announced; some worker must have a `PreemptionCheckpointHandler`.

    Source: `tf.distribute.experimental.PreemptionWatcher`.
    """

    def __init__(self) -> None:
        self._cluster = committing.cluster()

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
        return None if self._cluster is None else notice.read(self._cluster)
