"""The key-value store of a cluster, as all workers see it."""

from __future__ import annotations

import jax

from jaxtribute._src.core.callers import caller
from jaxtribute._src.core.cluster.roster import Roster, rank_of
from jaxtribute._src.core.cluster.step_log import Place, StepLog, described
from jaxtribute._src.core.cluster.waiting import RunningClock
from jaxtribute._src.core.cluster.watch import Watch
from jaxtribute._src.core.observers import WAIT
from jaxtribute._src.core.types import Foreign
from jaxtribute.errors import ClusterError, DeadlineError


class KeyValues:
    """Messages between workers by keys; a worker that waits for one is told of failures.

    Args:
      roster: the workers.
      store: JAX's client of the coordination service.
      watch: knows of failures.
      steps: what this worker does.
    """

    roster: Roster
    store: Foreign
    watch: Watch
    steps: StepLog

    def __init__(self, roster: Roster, store: Foreign, watch: Watch, steps: StepLog) -> None:
        self.roster, self.store, self.watch, self.steps = roster, store, watch, steps

    @property
    def rank(self) -> int:
        """This process among the workers."""
        return self.roster.rank

    @property
    def workers(self) -> int:
        """Number of processes that train together."""
        return len(self.roster.members)

    @property
    def names(self) -> tuple[str, ...]:
        """The workers as messages call them, by rank."""
        return self.roster.names

    def set(self, key: str, value: str) -> None:
        """Sets a key, whether it was set or not."""
        self.store.key_value_set(key, value, True)

    def get(self, key: str, timeout_s: float = 300.0, *, of: int | None = None, at: Place | None = None) -> str:
        """Waits for a key and returns its value.

        Args:
          key: the key.
          timeout_s: seconds to wait.
          of: the worker that sets it, for the message.
          at: the call in which that worker sets it; by default this worker's last step.

        Raises:
          DeadlineError: it was not set in time.
          ClusterError: meanwhile a worker failed, or the one that sets it has ended, or is in another call.
        """
        whom = "another worker" if of is None else self.names[of]
        with WAIT.during(self, f"in {self.steps.last}", whom):
            return self._awaited(key, timeout_s, of, whom, at)

    def _awaited(self, key: str, timeout_s: float, of: int | None, whom: str, at: Place | None) -> str:
        clock = RunningClock()
        deadline = clock.now() + timeout_s
        while True:
            self.check()
            left = deadline - clock.now()
            # Nothing can end a wait within the service, so it lasts a second at most: then failures are looked at.
            try:
                return self.store.blocking_key_value_get(key, max(1, int(1000 * min(left, 1.0))))
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise ClusterError(f"the coordination service failed: {str(error).splitlines()[0]}") from error
            # One that has ended, or is in another step, sets this key no more; it may have set it just before, hence
            # the second look.
            if of is not None and (parted := self._parted(of, at)) is not None and self.try_get(key) is None:
                raise parted
            if clock.now() > deadline:
                there = "" if of is None else f"\n{self.watch.whereabouts([of])}"
                raise DeadlineError(
                    f"{self.names[self.rank]} waited {timeout_s:g} s for {whom} to set {key!r}. "
                    f"HINT: see that worker's output; all workers must run the same program.{there}"
                )

    def _parted(self, rank: int, at: Place | None = None) -> ClusterError | None:
        """The error that this worker goes on without another, which has ended its program or is in another step."""
        place = at or self.steps.place
        here = place.told if at is not None else f"{place.told}, at {caller()}"
        hint = (
            "every worker must make the same calls as often as the others: saves too, so no `if` of the worker's "
            "number, such as `if jd.is_main():`, may stand before them."
        )
        if rank in self.watch.left:
            theirs = f"has ended its program after {self.watch.left[rank]}"
        elif self.watch.parted(rank, place):
            theirs = f"is in another call, {described(self.watch.pulses.report(rank))}"
        elif self.watch.as_before(rank, place):
            theirs = f"runs the step as it was made before, {described(self.watch.pulses.report(rank))}"
            hint = "each step needs arguments of the same shapes and dtypes, and the same constants, on all workers."
        else:
            return None
        return ClusterError(f"{self.names[self.rank]} is in {here}, and {self.names[rank]} {theirs}. HINT: {hint}")

    def try_get(self, key: str) -> str | None:
        """The value of a key, or None if it is not set."""
        try:
            return self.store.key_value_try_get(key)
        except jax.errors.JaxRuntimeError as error:
            # JAX's errors of the service are of one class, and differ by their texts.
            if "NOT_FOUND" in str(error):
                return None
            raise

    def delete(self, key: str) -> None:
        """Deletes a key, or all keys below it."""
        self.store.key_value_delete(key)

    def list(self, prefix: str) -> dict[str, str]:
        """The keys below a directory, by their full names."""
        return dict(self.store.key_value_dir_get(prefix))

    def by_rank(self, place: str) -> dict[int, str]:
        """The values of the keys `{place}/{rank}` that are set, by rank."""
        return {rank_of(key): value for key, value in self.list(f"{place}/").items()}

    def check(self) -> None:
        """Raises what is known of a failure elsewhere.

        Raises:
          ClusterError: a worker failed or was lost.
        """
        failure = self.watch.failure
        if failure is not None and failure.rank != self.rank:
            raise ClusterError(f"{failure.message(self.names)}\n{failure.details}".rstrip())
