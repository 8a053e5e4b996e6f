"""Faults on purpose: what a program does when a worker dies, hangs, is slow, raises, falls silent or computes wrongly.

    with jd.testing.inject(jd.testing.kill(rank=1, step=5), jd.testing.slow(at="input", probability=0.1)):
        train()

A program that knows nothing of it takes them from `JAXTRIBUTE_FAULTS`, a list in JSON:

    JAXTRIBUTE_FAULTS='[{"kind": "kill", "rank": 1, "step": 5}]' jaxtribute launch --workers 2 train.py
"""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypedDict, Unpack

import jax
import numpy as np

from jaxtribute import Variable
from jaxtribute._src.addons.launcher.environment import RESTART, rank_of_this_process
from jaxtribute._src.addons.testing import points
from jaxtribute.errors import ArgumentError, ConfigError
from jaxtribute.extending import count, parse_json, settings, shown
from jaxtribute.typing import Foreign

VARIABLE = "JAXTRIBUTE_FAULTS"
FOR_EVER_S = 3600.0


class InjectedError(RuntimeError):
    """Error that `raise_at` raises unless it is given another."""


class Where(TypedDict, total=False):
    """Moment and rank of a fault, as the attributes of `Fault` have them."""

    rank: int | None
    at: str
    step: int | None
    probability: float | None
    seed: int
    again: bool
    restart: int | None


@dataclass(frozen=True)
class Fault:
    """One fault; made by `kill`, `stall`, `slow`, `raise_at`, `drop_heartbeats` or `corrupt_value`.

    Attributes:
        kind: The name of the function that made it.
        act: What it does.
        rank: The rank that it befalls; `None` for each.
        at: The point of the program: `step`, `run`, `reduce`, `input`, `save`, `restore` or `barrier`, also followed
            by `:end`, or what the program gives to `jd.testing.point`.
        step: Number of the visit to the point at which it acts, from 1; `None` for the first.
        probability: Instead of that, how likely it is each time.
        seed: What the chance depends on, besides the rank.
        again: Whether it acts each time, instead of once; so it is with a probability.
        restart: The start of the job that it belongs to, counted by the launcher from 0; `None` for each.
    """

    kind: str
    act: Callable[[], None] = field(repr=False)
    rank: int | None = None
    at: str = "step"
    step: int | None = None
    probability: float | None = None
    seed: int = 0
    again: bool = False
    restart: int | None = 0

    def __post_init__(self) -> None:
        points.check(self.at)
        if self.probability is not None and (self.step is not None or not 0 <= self.probability <= 1):
            raise ArgumentError(
                f"{self.kind}(step={self.step!r}, probability={self.probability!r}). HINT: give one of the two, a "
                "probability from 0 to 1."
            )
        for name, least in (("step", 1), ("rank", 0), ("restart", 0)):
            given: object = getattr(self, name)
            # True is an int, too; infinite steps never come.
            if given is not None and (type(given) is not int or given < least):
                raise ArgumentError(f"{self.kind}({name}={shown(given)}). HINT: {name}s are counted from {least}.")


def kill(*, number: int = signal.SIGKILL, **where: Unpack[Where]) -> Fault:
    """Sends this process a signal: SIGKILL, as the kernel does when memory runs out, or SIGTERM for a preemption.

    Args:
        number: The signal.
        where: `rank`, `at`, `step`, `probability`, `seed`, `restart`: see `Fault`.
    """
    return Fault("kill", lambda: os.kill(os.getpid(), number), **where)


def stall(*, seconds: float = FOR_EVER_S, **where: Unpack[Where]) -> Fault:
    """Does nothing for long, as a rank that is stuck.

    Args:
        seconds: How long.
        where: `rank`, `at`, `step`, `probability`, `seed`, `restart`: see `Fault`.
    """
    return Fault("stall", lambda: time.sleep(seconds), **where)


def slow(*, seconds: float = 0.1, **where: Unpack[Where]) -> Fault:
    """Waits each time, as a straggler does.

    Args:
        seconds: How long.
        where: `rank`, `at`, `step`, `probability`, `seed`, `restart`: see `Fault`.
    """
    # A straggler is slow at every step, unless one step is named.
    where.setdefault("again", "step" not in where)
    return Fault("slow", lambda: time.sleep(seconds), **where)


def raise_at(*, error: BaseException | str = "injected", **where: Unpack[Where]) -> Fault:
    """Raises an error.

    Args:
        error: The error, or the message of an `InjectedError`.
        where: `rank`, `at`, `step`, `probability`, `seed`, `restart`: see `Fault`.
    """

    def act() -> None:
        raise InjectedError(error) if isinstance(error, str) else error

    return Fault("raise_at", act, **where)


def drop_heartbeats(**where: Unpack[Where]) -> Fault:
    """Lets this worker give no more signs of life to its cluster, though it works on.

    Args:
        where: `rank`, `at`, `step`, `probability`, `seed`, `restart`: see `Fault`.
    """
    return Fault("drop_heartbeats", _fall_silent, **where)


def corrupt_value(variable: Variable | str, *, by: float = 1.0, replica: int = 0, **where: Unpack[Where]) -> Fault:
    """Adds something to one replica's copy of a variable, as a broken device or a race may.

    Args:
        variable: The variable, or how its name begins.
        by: What is added to every element; booleans are inverted.
        replica: Which copy of this process.
        where: `rank`, `at`, `step`, `probability`, `seed`, `restart`: see `Fault`.
    """
    return Fault("corrupt_value", lambda: _corrupt(variable, by, replica), **where)


KINDS: Mapping[str, Callable[..., Fault]] = {
    make.__name__: make for make in (kill, stall, slow, raise_at, drop_heartbeats, corrupt_value)
}


@contextmanager
def inject(*faults: Fault) -> Generator[None]:
    """Lets faults happen within the block.

    Args:
        faults: What is to happen.
    """
    with _start(faults):
        yield


def apply_environment() -> None:
    """Lets the faults of `JAXTRIBUTE_FAULTS` happen for the rest of this process; `import jaxtribute` calls it.

    Raises:
        ConfigError: It is no list of faults.
    """
    faults = told()
    if faults:
        _start(faults)


def told() -> list[Fault]:
    """The faults that the environment names.

    Raises:
        ConfigError: It holds no list of faults.
    """
    text = os.environ.get(VARIABLE, "")
    return parse(text) if text else []


settings.reader(VARIABLE, told)


def parse(text: str) -> list[Fault]:
    """Reads faults as `JAXTRIBUTE_FAULTS` has them.

    Args:
        text: A list in JSON, each entry with its `kind` and that function's arguments.

    Raises:
        ConfigError: It is something else.
    """
    try:
        entries: Sequence[dict[str, Any]] = parse_json(text)
        found: list[Fault] = []
        for entry in entries:
            given = dict(entry)
            found.append(KINDS[given.pop("kind")](**given))
        return found
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{VARIABLE}={shown(text)} is no list of faults: {error!r}. "
            'HINT: write [{"kind": "kill", "rank": 1, "step": 5}]; the kinds are ' + f"{', '.join(KINDS)}."
        ) from error


def _start(faults: Sequence[Fault]) -> ExitStack:
    rank, restart = rank_of_this_process(), count(RESTART, 0)
    # A fault of the first start only, as by default, lets the restarted job go on: else it would never end.
    mine = [
        _Pending(fault, rank) for fault in faults if fault.rank in (None, rank) and fault.restart in (None, restart)
    ]

    def visit(name: str) -> None:
        for pending in mine:
            if pending.fault.at == name:
                pending.reach()

    return points.watch({pending.fault.at for pending in mine}, visit)


class _Pending:
    """A fault that waits for its time."""

    def __init__(self, fault: Fault, rank: int) -> None:
        self.fault = fault
        self._count = 0
        # By what is the same in each run: a fault that was met can be met again.
        self._random = random.Random(f"{fault.seed}/{rank}/{fault.kind}/{fault.at}")

    def reach(self) -> None:
        self._count += 1
        if self.fault.probability is not None:
            due = self._random.random() < self.fault.probability
        else:
            due = self._count == (self.fault.step or 1) or (self.fault.again and self._count > (self.fault.step or 1))
        if due:
            self.fault.act()


class _Silent:
    """The coordination service's client, deaf to this worker's pulses."""

    def __init__(self, store: Foreign) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def key_value_set(self, key: str, *args: str | bool) -> None:
        # All else goes through: only the signs of life are missing, as from a worker that is stuck.
        if "/pulse/" not in key:
            self._store.key_value_set(key, *args)


def _fall_silent() -> None:
    from jaxtribute.extending import Cluster

    cluster = Cluster.current()
    if cluster is not None:
        # By the store, not by stopping the watch: a worker whose network is cut still watches the others.
        watch: Any = cluster.watch
        watch._store = _Silent(watch._store)


def _corrupt(variable: Variable | str, by: float, replica: int) -> None:
    found = _variable(variable) if isinstance(variable, str) else variable
    array = found.peek()
    # The order of the shards is JAX's affair; the ids of devices are the same in each run.
    shards = sorted(array.addressable_shards, key=lambda shard: shard.device.id)
    if not 0 <= replica < len(shards):
        raise ArgumentError(
            f"corrupt_value(replica={replica}) of {found.name!r}, which has {len(shards)} copies in this process. "
            "HINT: count them from 0."
        )
    pieces = [np.asarray(shard.data) for shard in shards]
    old = pieces[replica]
    # Written shard by shard behind the strategy's back: no assignment could make copies differ.
    pieces[replica] = ~old if old.dtype == bool else old + np.asarray(by, old.dtype)
    placed = [jax.device_put(piece, shard.device) for piece, shard in zip(pieces, shards, strict=True)]
    found.bind(jax.make_array_from_single_device_arrays(array.shape, array.sharding, placed))


def _variable(name: str) -> Variable:
    # Faults of the environment know a name only, and the library keeps no list of all variables.
    alive = [one for one in gc.get_objects() if isinstance(one, Variable)]
    for one in alive:
        if one.name.startswith(name):
            return one
    raise ArgumentError(
        f"corrupt_value finds no variable whose name begins with {name!r} among "
        f"{sorted(map(attrgetter('name'), alive))}. HINT: give one of these."
    )
