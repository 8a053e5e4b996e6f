"""This process as a member of a cluster, on `jax.distributed`.

| environment variable | meaning |
|---|---|
| `JAXTRIBUTE_BIND_ADDRESS` | host:port where the coordination service listens, instead of its address in the spec |
| `JAXTRIBUTE_SILENCE_S` | seconds without a sign of life after which a worker is lost; 20 by default |
| `JAXTRIBUTE_STRAGGLERS_S` | seconds between two lines on whom the workers wait for; 60 by default, 0 for none |
| `JAXTRIBUTE_TIMEOUT_S` | seconds that a step or a wait for another worker may take; 600 by default |
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import jax
from jax._src import distributed, xla_bridge
from jax._src.lib import _jax  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]

from jaxtribute._src.core import allocator, backend
from jaxtribute._src.core.callers import caller
from jaxtribute._src.core.cluster import ledger
from jaxtribute._src.core.cluster.addresses import Address
from jaxtribute._src.core.cluster.failures import ELSEWHERE, Failure, may_be_broken_collective, say
from jaxtribute._src.core.cluster.key_values import KeyValues
from jaxtribute._src.core.cluster.roster import Roster
from jaxtribute._src.core.cluster.spec import ClusterSpec
from jaxtribute._src.core.cluster.step_log import Place, StepLog
from jaxtribute._src.core.cluster.told import BIND, ISLANDS, bind_address, deadline_s, silence_s
from jaxtribute._src.core.cluster.waiting import RunningClock, await_workers
from jaxtribute._src.core.cluster.watch import Watch
from jaxtribute._src.core.observers import BARRIER, observed
from jaxtribute._src.core.types import Foreign, Nest
from jaxtribute.errors import ArgumentTypeError, ClusterError, ConfigError, DeadlineError

if TYPE_CHECKING:
    from jaxtribute._src.core.cluster.resolvers.base import ClusterResolver

_GRACE_S = 2.0
_LONGEST_S = 600.0
_START_S, _CONNECT_S = 300.0, 120  # to wait for workers; for JAX, to connect those that are there
_HEARTBEAT_S = 24 * 3600

_config = cast(Any, jax.config)


class Cluster(KeyValues):
    """The cluster that this process belongs to: its members, a key-value store and barriers. Made by `connect`.

    Args:
      roster: who belongs to it.
      store: the key-value store that all processes reach.
      silence_s: seconds without a sign of life after which a process counts as lost.
      timeout_s: seconds that a step, an exchange or a wait for data may take before it is an error.
    """

    def __init__(self, roster: Roster, store: Foreign, silence_s: float, timeout_s: float) -> None:
        # The clock must notice that this process stood still before the others' silence, which then is its own, counts.
        steps = StepLog(RunningClock(min(5.0, silence_s / 2)))
        super().__init__(roster, store, Watch(store, roster, silence_s, self._end, steps), steps)
        self.timeout_s = timeout_s
        self._barriers: dict[str, int] = {}
        self._exchanges = 0
        self._unexplained: BaseException | None = None
        """The last error of which nothing was learned from the others."""
        self._numbers: Counter[str] = Counter()
        self._point = 0
        self._announcements: Counter[str] = Counter()

    @property
    def timeout_s(self) -> float:
        """Seconds that a step, an exchange or a wait for data may take before it is an error."""
        return self.watch.deadline_s

    @timeout_s.setter
    def timeout_s(self, value: float) -> None:
        """Changes it from now on."""
        self.watch.deadline_s = value

    say = staticmethod(say)

    @staticmethod
    def current() -> Cluster | None:
        """The cluster that this process has joined, if any."""
        return _current

    @staticmethod
    def join(resolver: ClusterResolver, timeout_s: float | None = None) -> Cluster | None:
        """Joins the cluster that a resolver describes; None if it describes none.

        Raises:
          ClusterSpecError: the resolver does not say which task this is.
          ArgumentTypeError: it is no resolver.
        """
        if not callable(getattr(resolver, "cluster_spec", None)):
            raise ArgumentTypeError(
                f"cluster_resolver is {resolver!r} of type {type(resolver).__name__}. "
                "HINT: pass a jd.cluster_resolver.ClusterResolver, such as SimpleClusterResolver(jd.ClusterSpec(...))."
            )
        spec = resolver.cluster_spec()
        if not spec.jobs:
            return None
        task_type, task_id = resolver.own_task()
        cluster = connect(spec, task_type, task_id, timeout_s=timeout_s)
        # `connect` gives a cluster that was joined before as it is; the newest strategy's deadline holds for it.
        if timeout_s is not None:
            cluster.timeout_s = timeout_s
        return cluster

    def patience(self, timeout_s: float | None = None) -> float:
        """Seconds that workers wait for each other: those asked for, or as many as for a step, at most ten minutes."""
        return min(self.timeout_s, _LONGEST_S) if timeout_s is None else timeout_s

    @observed(BARRIER)
    def barrier(self, name: str, timeout_s: float = 300.0) -> None:
        """Waits until all workers have come to the barrier of this name; it can be used again and again.

        Args:
          name: the same on all workers.
          timeout_s: seconds to wait.

        Raises:
          DeadlineError: some did not come; it names them.
          ClusterError: meanwhile a worker failed, or one has ended or is in another call.
        """
        here = self.meets(f"the barrier {name!r}")
        number = self._barriers[name] = self._barriers.get(name, 0) + 1
        place = f"jaxtribute/barrier/{name}/{number}"
        self.set(f"{place}/{self.rank}", "")

        def absent() -> list[int]:
            here = self.by_rank(place)
            return [rank for rank in range(self.workers) if rank not in here]

        def check() -> None:
            self.check()
            for rank in range(self.workers):
                # The second look: it may have come, and gone on.
                if rank != self.rank and (parted := self._parted(rank, here)) is not None and rank in absent():
                    raise parted

        await_workers(self.roster, absent, f"at the barrier {name!r}", timeout_s, check, self.watch.whereabouts)
        if number > 1:  # all are here, so all have left the one before
            self.delete(f"jaxtribute/barrier/{name}/{number - 1}/{self.rank}")

    def exchange(self, what: str, text: str, *, at: Place | None = None) -> list[str]:
        """Gives this worker's text and returns every worker's, by rank; all workers make the same calls in order.

        Args:
          what: names the call; workers that are at different ones get an error.
          text: what this worker tells, up to about a megabyte.
          at: the step that it is part of; by default it is a call of its own.

        Raises:
          ClusterError: the workers are at different calls, or one failed.
          DeadlineError: a worker did not come within `timeout_s`.
        """
        # Keys by number, not by name: workers at different calls then read each other's texts, and can say so.
        number, self._exchanges = self._exchanges, self._exchanges + 1
        key, here = f"jaxtribute/exchange/{number}", at or self.meets(what)
        own = [what, text, caller()]
        self.set(f"{key}/{self.rank}", json.dumps(own))
        told = [
            own if rank == self.rank else json.loads(self._told(f"{key}/{rank}", here, rank))
            for rank in range(self.workers)
        ]
        if number:  # all are here, so all have read what came before
            self.delete(f"jaxtribute/exchange/{number - 1}/{self.rank}")
        if len({message[0] for message in told}) > 1:
            lines = "\n".join(f"  {name}: {said[0]}, at {said[2]}" for name, said in zip(self.names, told, strict=True))
            raise ClusterError(
                f"the workers do different things, in their {number}th exchange:\n{lines}\n"
                "HINT: all workers must run the same program; look for a condition that depends on the worker."
            )
        return [message[1] for message in told]

    def _told(self, key: str, here: Place, rank: int) -> str:
        """A worker's message in an exchange, unless the worker has ended or hangs."""
        try:
            return self.get(key, self.timeout_s, of=rank, at=here)
        except DeadlineError as error:
            raise DeadlineError(f"{self.names[self.rank]} waits at {here.told}: {error}") from None

    def meets(self, what: str) -> Place:
        """Notes that the program comes to a call that all workers make together, other than a step.

        Whoever waits in it learns of workers that are in another call instead. Call it where steps are called, in the
        thread that trains.

        Args:
          what: names the call, the same on all workers.
        """
        return self.steps.meets(what, caller())

    def announce(self, what: str, text: str) -> None:
        """Tells workers that come to the same call, at this point of the program, and waits for none.

        Args:
          what: names the call.
          text: what they are told.
        """
        self.set(self._announced(what), text)

    def announced(self, what: str, rank: int) -> str | None:
        """Waits for what another worker announces at this point of the program; None if it has gone on without.

        Args:
          what: names the call.
          rank: the worker.

        Raises:
          ClusterError: meanwhile a worker failed.
          DeadlineError: within `timeout_s` it has done neither.
        """
        key = self._announced(what)
        text: str | None = None

        def absent() -> list[int]:
            nonlocal text
            # Asked before the look: what has been announced is there by the time when the worker goes on.
            gone = rank in self.watch.left or self.watch.pulses.report(rank).get("call", 0) > self.steps.calls
            text = self.try_get(key)
            return [] if gone or text is not None else [rank]

        await_workers(self.roster, absent, f"for {what}", self.timeout_s, self.check, self.watch.whereabouts)
        return text

    def _announced(self, what: str) -> str:
        """The key of an announcement: all workers that come here have been in as many steps, and other calls."""
        if self._point != self.steps.calls:
            self._point = self.steps.calls
            self._announcements.clear()
        self._announcements[what] += 1
        return f"jaxtribute/announced/{what}/{self._point}/{self._announcements[what]}"

    def entering(self, name: str, collectives: Callable[[], Sequence[str]]) -> None:
        """Notes that a program over all workers is about to be handed to the devices.

        Args:
          name: what it does.
          collectives: lists its collectives; asked only if the ledger is on.

        Raises:
          ClusterError: another worker failed, or with the ledger on it is about to do something else.
        """
        # Before each program: a collective with a worker that is gone would wait until the watch ends the process.
        self.check()
        if not ledger.enabled():
            self.steps.entering(name)
            return
        self.steps.entering(name, caller())
        ledger.compare(self, name, collectives())

    def dispatched(self, result: Nest) -> None:
        """Notes that the program was handed over, to be watched until `result` is there."""
        self.steps.dispatched(result)

    def waited(self, seconds: float) -> None:
        """Notes time spent waiting for the devices."""
        self.steps.waited_s += seconds

    def number(self, kind: str) -> int:
        """The next number for something that all workers make in the same order, from 0."""
        self._numbers[kind] += 1
        return self._numbers[kind] - 1

    def fail(self, error: BaseException) -> None:
        """Tells the other workers that this one's program has raised; they end within seconds."""
        cause = self.watch.cause(error)
        # Otherwise the program's own traceback says it already.
        if cause.rank != self.rank:
            say(f"{self.names[self.rank]} failed because {cause.message(self.names)}")

    def explained(self, error: BaseException) -> BaseException:
        """The error that tells why a collective broke, if another worker is the cause; else the error itself.

        Waits a few seconds for the others' word, or for the silence of one that is gone.
        """
        if isinstance(error, ClusterError) or error is self._unexplained or not may_be_broken_collective(error):
            return error
        # JAX's other errors, such as that memory ran out, mostly have nothing to do with the others.
        deadline = time.monotonic() + (self.watch.suspect() if "Gloo" in str(error) else _GRACE_S)
        while time.monotonic() < deadline:
            for rank in range(self.workers):
                if rank != self.rank and (explained := self._parted(rank)) is not None:
                    explained.__cause__ = error
                    return explained
            try:
                self.check()
            except ClusterError as explained:
                explained.__cause__ = error
                return explained
            time.sleep(0.05)
        self._unexplained = error
        return error

    def exit(self) -> None:
        """Ends this process at once, after a failure; JAX would wait minutes for the workers that are gone."""
        self.watch.depart()
        failure = self.watch.failure
        # No exit of Python's: its last steps, those of JAX among them, would wait for the workers that are gone.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # full, gone, or closed from the start
                stream.flush()
        os._exit(1 if failure is not None and failure.rank == self.rank else ELSEWHERE)

    def _end(self, failure: Failure) -> None:
        """Ends this process, which may be stuck in a collective, after a failure elsewhere."""
        self.watch.publish(failure)
        # Under the launcher each worker's own output is at hand.
        if failure.details and (failure.reporter == self.rank or "JAXTRIBUTE_LAUNCHER" not in os.environ):
            say(f"what is known of a failure:\n{failure.details}")
        say(f"{self.names[self.rank]} ends, since {failure.message(self.names)}")
        threading.main_thread().join(_GRACE_S)  # its next call of the library raises, and it may clean up
        self.exit()


_current: Cluster | None = None
"""JAX knows one cluster a process, and so does this library."""
before_start: list[Callable[[Roster, str, float], None]] = []
"""Called before JAX starts, with the address to listen at and seconds to wait: `roll_call` and `proxies` are here."""


def connect(
    spec: ClusterSpec | Mapping[str, Any], task_type: str, task_id: int, *, timeout_s: float | None = None
) -> Cluster:
    """Joins the cluster; the same call again gives the same cluster.

    The chief, or worker 0 if there is none, hosts the coordination service at its own address of the spec.

    Args:
      spec: a `ClusterSpec`, or a mapping from jobs to addresses. Its chief and workers train together.
      task_type: this process's job.
      task_id: its task there.
      timeout_s: seconds to wait for the others; by default those for a step, at most five minutes.

    Raises:
      ClusterSpecError: the spec is malformed or has no such task.
      ConfigError: JAX has started already, or this process is in another cluster.
      DeadlineError: workers did not come in time; it names them.
      ClusterError: the service could not be started.
    """
    global _current
    jobs: Mapping[str, Any] = spec if isinstance(spec, Mapping) else spec.as_dict()
    roster = Roster.of(jobs, task_type, task_id)
    if _current is not None:
        # Several strategies of one program share its cluster.
        if _current.roster == roster:
            return _current
        raise ConfigError(
            f"this process is already {_current.names[_current.rank]} of a cluster of {_current.workers}, and was "
            f"asked to be {roster.names[roster.rank]} of {len(roster.members)}. HINT: one cluster a process."
        )
    _prepare(roster)
    timeout_s = min(_START_S, deadline_s()) if timeout_s is None else timeout_s
    _start(roster, timeout_s)
    cluster = Cluster(roster, distributed.global_state.client, silence_s(), deadline_s())
    cluster.watch.start()
    atexit.register(leave)
    # A forked child is not a worker: its end is not the end of this process.
    os.register_at_fork(after_in_child=_forget)
    _report_exceptions(cluster)
    # Before the barrier: where that fails, the end of the program still tells the others, and leaves.
    _current = cluster
    cluster.barrier("start", timeout_s)
    return cluster


def _forget() -> None:
    global _current
    _current = None
    sys.excepthook = sys.__excepthook__


def leave() -> None:
    """Leaves the cluster, at the end of the program; the coordinator stays until all others have left."""
    global _current
    cluster, _current = _current, None
    if cluster is None:
        return
    if cluster.watch.failure is None:
        try:
            # Told first: workers that still wait for this one learn that it will not come, and do not call it lost.
            cluster.watch.leave()
            _await_leaving(cluster)
        except (jax.errors.JaxRuntimeError, ClusterError) as error:
            say(f"{cluster.names[cluster.rank]} left a cluster that had failed: {str(error).splitlines()[0]}")
    if cluster.watch.failure is not None:
        cluster.exit()
    cluster.watch.stop()
    jax.distributed.shutdown()


def _await_leaving(cluster: Cluster) -> None:
    """The coordinator waits while others work: they are watched, so that one that is lost ends the wait."""
    if cluster.rank != 0:
        return

    def still_here() -> list[int]:
        return [rank for rank in range(1, cluster.workers) if rank not in cluster.watch.left]

    await_workers(cluster.roster, still_here, "at the end of the program", float("inf"), cluster.check)


def _prepare(roster: Roster) -> None:
    """Settings that JAX reads when it starts."""
    if backend.backend_started():
        raise ConfigError(
            f"{roster.names[roster.rank]} cannot join its cluster: JAX has already started in this process. "
            "HINT: make the strategy before anything that uses a JAX device or array."
        )
    if roster.rank == 0 and len(roster.members) > 1 and ISLANDS in os.environ:
        say(
            "this program makes one cluster of all workers, and `launch --elastic` starts each of them again alone, "
            "which cannot come back into it. HINT: use jd.experimental.ElasticStrategy; or leave out --elastic, with "
            "--max-restarts for the whole job."
        )
    backend.prepare_cpu_backend()
    if len(roster.members) > 1:
        allocator.tune_allocator()
    # The end of a worker is told by the watch, with its name, instead of by an abort.
    _config.update("jax_enable_recoverability", True)
    # It would take SIGTERM, and programs could no longer be stopped by it.
    _config.update("jax_enable_preemption_service", False)


def _start(roster: Roster, timeout_s: float) -> None:
    """Starts the coordination service on rank 0, and connects."""
    bind = bind_address() or roster.members[0].address
    try:
        for call in before_start:
            call(roster, bind, timeout_s)
        jax.distributed.initialize(
            roster.members[0].address,
            len(roster.members),
            roster.rank,
            cluster_detection_method="deactivate",
            initialization_timeout=_CONNECT_S,
            # The watch notices a worker's end, and whether all stood still; the service's own check would abort.
            heartbeat_timeout_seconds=_HEARTBEAT_S,
            coordinator_bind_address=bind if roster.rank == 0 else None,
        )
    except ClusterError:  # the workers do not fit together
        raise
    except (RuntimeError, ValueError) as error:
        raise ClusterError(
            f"{roster.own} could not start its part of the cluster: {error}. HINT: {bind} must be a free address of "
            f"this machine; where the cluster knows this machine by another one, set {BIND}=host:port."
        ) from error
    host = Address.parse(roster.own.address).host
    xla_bridge.register_backend_factory("cpu", lambda: _cpu_client(host), priority=0, fail_quietly=False)


def _cpu_client(host: str) -> Any:
    """JAX's CPU client, with collectives that listen on this worker's address alone."""
    # By default Gloo listens where the machine's name leads, which may be an interface that the others cannot reach.
    store = distributed.global_state.client
    if store is None or _config.jax_cpu_collectives_implementation != "gloo":
        return xla_bridge.make_cpu_client()
    return xla_bridge.make_cpu_client(_jax.make_gloo_tcp_collectives(distributed_client=store, hostname=host))


def _report_exceptions(cluster: Cluster) -> None:
    """Tells the others when this program ends with an exception."""
    shown = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        told = cluster.explained(error)
        if told is not error:
            kind, error = type(told), told.with_traceback(trace)
        # Shown first: telling the others may take seconds, where a collective has broken.
        shown(kind, error, trace)
        if not isinstance(error, KeyboardInterrupt) or cluster.workers > 1:
            cluster.fail(error.with_traceback(trace))

    sys.excepthook = hook
