"""Every transformation with every kind of nest under every strategy, eagerly and compiled, against plain Optax.

    JAX_ENABLE_X64=1 PYTHONPATH=tests/support:tests python -m transformation_product [--kinds dict] [--where two]

prints what differs, of parameters and states, and in the end how many cases there were and the largest difference. The
suite trains a sample of them.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

import jaxtribute as jd
from jaxtribute import config
from jaxtribute._src.core.input.options import AutoShardPolicy, InputOptions
from jaxtribute.partitioners import FixedShardsPartitioner
from jaxtribute.testing import run_multi_process
from replicas import mirrored, one_device
from transformations import (
    CASES,
    KINDS,
    STEPS,
    arguments,
    batch,
    by_optax,
    difference,
    further,
    is_variable,
    leaves,
    mean_loss,
    row_gradients,
)

os.environ.setdefault("KERAS_BACKEND", "jax")
TOLERANCE = 1e-6
SEARCHED = 3
"""Steps of what searches, where each is compiled anew."""
EVEN, UNEVEN = 8, 5
"""Examples of a batch: of four replicas three get some of the uneven one, and not equally many."""


Differences = tuple[float, float]
"""The largest difference of the parameters, and that of the states."""


def devices(count: int) -> list[str]:
    return [f"CPU:{i}" for i in range(count)]


def _groups(kind: Any, **options: Any) -> Any:
    """Two replicas of two devices, which divide the matrices of models."""
    # The names of all kinds of nests: each has one of them.
    warnings.filterwarnings("ignore", message="no variable fits")
    layout = {".*kernel": (None, "model"), ".*weight": ("model",)} if kind is jd.MirroredStrategy else None
    return kind(devices(4), devices_per_replica=2, layout=layout, **options)


STRATEGIES: dict[str, tuple[Callable[[], jd.Strategy], bool]] = {
    "default": (jd.get_strategy, False),
    "one device": (lambda: one_device(1), False),
    "one": (lambda: mirrored(1), True),
    "two": (lambda: mirrored(2), False),
    "two in slices": (lambda: mirrored(2), True),
    "four": (lambda: mirrored(4), False),
    "four in slices": (lambda: mirrored(4), True),
    "sharded over two": (lambda: jd.FullyShardedStrategy(devices(2), min_bytes=0), False),
    "sharded over four": (lambda: jd.FullyShardedStrategy(devices(4), min_bytes=0), False),
    "central": (lambda: jd.CentralStorageStrategy(devices(2), "CPU:0"), False),
    "replicas of two devices": (lambda: _groups(jd.MirroredStrategy), False),
    "sharded replicas of two devices": (lambda: _groups(jd.FullyShardedStrategy, min_bytes=0), False),
}
"""How each strategy is made, and whether updates are divided over its replicas."""


@dataclass(frozen=True)
class Place:
    """A way to train: under which strategy and in which mode, and by batches of how many examples."""

    where: str
    compiled: bool
    rows: int

    def __str__(self) -> str:
        return f"{self.where}, {'compiled' if self.compiled else 'eager'}, batches of {self.rows}"


Outcome = tuple[str, Place, str, Differences | str]

PLACES = [
    Place(where, compiled, rows)
    for where in STRATEGIES
    for compiled in (True, False)
    for rows in (EVEN, UNEVEN)
    if rows == EVEN or where not in ("default", "one device", "one")
]


@cache
def expected(name: str, kind: str, rows: int, steps: int) -> tuple[Any, Any]:
    return by_optax(CASES[name], KINDS[kind][0](), rows, steps)


class Trainer:
    """Models of one kind under one strategy, each with its transformation; trained from the start in each call.

    Args:
      strategy: the strategy.
      shard: whether updates are divided over its replicas.
      kind: the kind of nest.
      names: the transformations.
    """

    def __init__(self, strategy: jd.Strategy, shard: bool, kind: str, names: Sequence[str]) -> None:
        self.strategy, self.params = strategy, KINDS[kind][0]()
        self.targets, self.optimizers = dict[str, Any](), dict[str, Any]()
        with strategy.scope():
            for name in names:
                target = self.targets[name] = KINDS[kind][1]()
                self.optimizers[name] = jd.Optimizer(CASES[name].make(self.params), target, shard_update=shard)
        self.starts = {
            name: (leaves(one.trainable_variables)[0], leaves(one.variables)[0])
            for name, one in self.optimizers.items()
        }

    def train(self, names: Sequence[str], *, compiled: bool, rows: int, steps: int = STEPS) -> None:
        """Trains the models of these transformations."""
        for name in names:
            one = self.optimizers[name]
            for variables, first in zip((one.trainable_variables, one.variables), self.starts[name], strict=True):
                for variable, value in zip(variables, first, strict=True):
                    variable.assign(value)

        def replica(local: Any) -> None:
            for name in names:
                self._step(name, local, rows)

        def step(local: Any) -> None:
            self.strategy.run(replica, (local,))

        call = jd.function(step) if compiled else step
        options = InputOptions(auto_shard_policy=AutoShardPolicy.DATA)
        searches = any(CASES[name].searches for name in names)
        data = [batch(number, rows, searches) for number in range(steps)]
        for local in self.strategy.experimental_distribute_dataset(data, options):
            call(local)

    def _step(self, name: str, local: Any, size: int) -> None:
        case, optimizer = CASES[name], self.optimizers[name]

        def present() -> Any:
            return jax.tree.map(lambda one: one.read_value(), optimizer.nest, is_leaf=is_variable)

        if case.each:
            optimizer.apply_gradients(row_gradients(present(), local))
            return
        target = self.targets[name]
        value, grads = jd.value_and_grad(lambda: mean_loss(present(), local, size), target)()
        optimizer.apply_gradients(grads, **further(case, value, grads, local, size))

    def differences(
        self, kind: str, names: Sequence[str], rows: int, steps: int = STEPS
    ) -> dict[str, tuple[float, float]]:
        """How much parameters and states differ from those of plain Optax."""
        found: dict[str, tuple[float, float]] = {}
        for name in names:
            params, state = expected(name, kind, rows, steps)
            one = self.optimizers[name]
            found[name] = difference(one.nest, params), difference(one.state, state)
        return found


def failures(found: dict[str, tuple[float, float]]) -> list[str]:
    """What differs by too much."""
    return [f"{name}: parameters {a:.1e}, state {b:.1e}" for name, (a, b) in found.items() if not max(a, b) < TOLERANCE]


def compare(kind: str, place: Place, names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Trains in one place, and compares."""
    make, shard = STRATEGIES[place.where]
    trainer = Trainer(make(), shard, kind, names)
    trainer.train(names, compiled=place.compiled, rows=place.rows)
    return trainer.differences(kind, names, place.rows)


def together(names: Sequence[str], compiled: bool, steps: int = STEPS) -> list[tuple[list[str], int]]:
    """The transformations in the groups that one step trains, and for how many steps.

    Searches evaluate functions of all replicas: eagerly each step compiles them anew.
    """
    plain = [name for name in names if not CASES[name].searches]
    alone = [([name], steps if compiled else SEARCHED) for name in names if CASES[name].searches]
    return [(plain, steps), *alone] if plain else alone


def product(
    kinds: Sequence[str], places: Sequence[Place], names: Sequence[str], steps: int = STEPS
) -> Iterator[Outcome]:
    """Trains all of it; gives for each case the differences, or the error."""
    for kind in kinds:
        trainers: dict[tuple[str, tuple[str, ...]], Trainer] = {}
        for place in places:
            for some, count in together(names, place.compiled and place.rows == EVEN, steps):
                yield from _outcomes(trainers, kind, place, some, count)


def _outcomes(trainers: Any, kind: str, place: Place, names: list[str], steps: int) -> Iterator[Outcome]:
    """Trains several in one step; if it fails, each by itself."""
    key, found = (place.where, tuple(names)), dict[str, Any]()
    try:
        if key not in trainers:
            if any(where != place.where for where, _ in trainers):
                trainers.clear()
            make, shard = STRATEGIES[place.where]
            trainers[key] = Trainer(make(), shard, kind, names)
        trainers[key].train(names, compiled=place.compiled, rows=place.rows, steps=steps)
        found = trainers[key].differences(kind, names, place.rows, steps)
    except Exception as error:  # noqa: BLE001  # whatever fails is told, and the others go on
        trainers.pop(key, None)
        if len(names) > 1:
            for name in names:
                yield from _outcomes(trainers, kind, place, [name], steps)
            return
        found = {names[0]: f"{type(error).__name__}: {error}"}
    for name, outcome in found.items():
        yield kind, place, name, outcome


REFUSED = "ArgumentError"
"""The class of errors that refuse a case by name; the sentence ends with a hint."""


def is_right(case: Outcome, workers: int = 1) -> bool:
    """True for a case that differs by rounding alone; and for a function that is given where workers run apart.

    Eagerly no worker can call the functions of others, and uneven batches of a step with loops run eagerly.
    """
    _, place, name, outcome = case
    if isinstance(outcome, str):
        apart = workers > 1 and CASES[name].searches and not (place.compiled and place.rows == EVEN)
        return apart and outcome.startswith(
            "ArgumentError: apply_gradients was given a function outside of a jd.function"
        )
    return not failures({name: outcome})


def on_worker(
    kinds: Sequence[str],
    names: Sequence[str],
    modes: Sequence[str] = ("compiled", "eager"),
    rows: Sequence[int] = (EVEN, UNEVEN),
    wheres: Sequence[str] = ("workers", "workers in slices"),
    steps: int = STEPS,
) -> list[Outcome]:
    """The same product on a worker of a cluster."""
    from worker_programs import strategy

    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_enable_x64", True)
    try:
        STRATEGIES["workers"] = strategy, False
        STRATEGIES["workers in slices"] = strategy, True
        places = [Place(where, mode == "compiled", count) for where in wheres for mode in modes for count in rows]
        return list(product(kinds, places, names, steps))
    finally:
        jax.config.update("jax_enable_x64", False)


def on_servers(kinds: Sequence[str], names: Sequence[str], servers: int, steps: int = STEPS) -> Iterator[Outcome]:
    """Under parameter servers, whose updates the coordinator sends eagerly, and a worker from compiled steps."""
    from parameter_servers.clusters import threads

    options: Any = {"partitioner": FixedShardsPartitioner(2)} if servers > 1 else {}
    for kind in kinds:
        params = KINDS[kind][0]()
        for compiled in (False, True):
            with threads(servers=servers, **options) as strategy:
                coordinator = jd.coordinator.ClusterCoordinator(strategy)
                for name in names:
                    place = Place(f"{servers} parameter servers", compiled, EVEN)
                    try:
                        yield kind, place, name, _by_servers(strategy, coordinator, kind, name, params, compiled, steps)
                    except Exception as error:  # noqa: BLE001  # whatever fails is told, and the others go on
                        yield kind, place, name, f"{type(error).__name__}: {error}"


def _by_servers(
    strategy: Any, coordinator: Any, kind: str, name: str, params: Any, compiled: bool, steps: int
) -> Differences:
    case = CASES[name]
    with strategy.scope():
        target = KINDS[kind][1]()
        optimizer = jd.Optimizer(case.make(params), target)

    def step(rows: Any) -> None:
        present = jax.tree.map(lambda one: one.read_value(), optimizer.nest, is_leaf=is_variable)
        grads, extra = arguments(case, present, jnp.asarray(rows), EVEN)
        optimizer.apply_gradients(grads, **extra)

    call = jd.function(step) if compiled else step
    for number in range(steps):
        rows = batch(number, EVEN, case.searches)
        if compiled:
            coordinator.schedule(call, args=(rows,)).fetch()
        else:
            call(rows)
    plain, state = expected(name, kind, EVEN, steps)
    return difference(optimizer.nest, plain), difference(optimizer.state, state)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--where", nargs="*", choices=list(STRATEGIES), default=list(STRATEGIES))
    parser.add_argument("--names", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--modes", nargs="*", default=["compiled", "eager"])
    parser.add_argument("--workers", nargs=2, type=int, help="a cluster: workers, and devices of each")
    parser.add_argument("--servers", type=int, help="parameter servers")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    config.set_logical_cpu_devices(8)
    jax.config.update("jax_disable_most_optimizations", True)
    places = [
        one
        for one in PLACES
        if one.where in options.where and ("compiled" if one.compiled else "eager") in options.modes
    ]
    worst, count, wrong, refused, start = 0.0, 0, 0, 0, time.monotonic()
    last: Any = None
    outcomes: Any = product(options.kinds, places, options.names)
    if options.servers:
        outcomes = on_servers(options.kinds, options.names, options.servers)
    elif options.workers:
        module, (workers, each) = importlib.import_module("transformation_product"), options.workers
        given = options.kinds, options.names, options.modes, (EVEN, UNEVEN)
        ranks = run_multi_process(module.on_worker, workers=workers, devices=each, timeout_s=5000, args=given)
        outcomes = [one for rank in ranks for one in rank]
    for kind, place, name, outcome in outcomes:
        if (kind, place) != last:
            print(f"{time.monotonic() - start:6.0f} s, {count} cases, {worst:.1e}; now {kind}, {place}", flush=True)
            last = kind, place
        count += 1
        if isinstance(outcome, str) and outcome.startswith(REFUSED) and "HINT" in outcome:
            refused += 1
            print(f"    {name}: {outcome}", flush=True)
        elif isinstance(outcome, str) or failures({name: outcome}):
            wrong += 1
            print(f"    {name}: {outcome}", flush=True)
        if not isinstance(outcome, str):
            if max(outcome) > 1e-9:
                print(f"    {name}: {outcome[0]:.1e} {outcome[1]:.1e}", flush=True)
            worst = max(worst, *outcome)
    print(
        f"{count} cases, {refused} refused, {wrong} wrong; largest difference {worst:.1e}; "
        f"{time.monotonic() - start:.0f} s",
        flush=True,
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
