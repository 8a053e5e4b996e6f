"""Choosing a layout from a program, and laying the variables out by it."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import jax

from jaxtribute import LayoutMap, Variable
from jaxtribute._src.addons.layouts import reasons
from jaxtribute._src.addons.layouts.automatic import (
    TRIES,
    AutomaticLayout,
    Candidate,
    Layout,
    axis_to_split_over,
    split_at,
)
from jaxtribute._src.addons.layouts.axes import AxisClasses
from jaxtribute._src.addons.layouts.clusters import Cluster, Plan, clusters_of, split_axis
from jaxtribute._src.addons.layouts.found import FoundLayouts
from jaxtribute._src.addons.layouts.judging import Judge, laid_out
from jaxtribute._src.addons.layouts.search import Search
from jaxtribute._src.addons.tools.sizes import bytes_on_each
from jaxtribute._src.addons.tools.tables import bytes_text
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import Callers, Capture, Context, Function, Nests, Policy, Programs, ReplicaMesh, updating
from jaxtribute.typing import Leaf, Nest

_LOG = logging.getLogger(__name__)
_QUIET_S = 5.0
"""Seconds of a search without a word."""
_HOW = (
    'jaxtribute: layout="auto" compiles this step several times to compare layouts. HINT: '
    'strategy.extended.layouts.save("layout.json") keeps the choice; a strategy with '
    'layout=jd.LayoutMap.load("layout.json") compiles it once.\n'
)


_SMALLER = (
    "give replicas more devices (devices_per_replica), use fewer examples or 16-bit numbers, or allow more bytes "
    "(memory_limit)."
)


class Choice:
    """The choice of a layout for some variables of a program.

    Args:
      traced: the program.
      leaves: the arrays of its arguments.
      mesh: the replicas' devices.
      movable: the variables that may be laid out.
    """

    def __init__(self, traced: Capture, leaves: Sequence[Any], mesh: ReplicaMesh, movable: set[Variable]) -> None:
        self._mesh, self.judge = mesh, Judge(traced, leaves, mesh)
        self._movable, self._parts = movable, axis_to_split_over(mesh)[1]
        self._classes = AxisClasses(Programs.opened(traced.closed))
        # The program's inputs are its arguments, and then these.
        self._inputs: list[Variable] = list(traced.executor.inputs)
        inputs = dict(enumerate(self._inputs, len(leaves)))
        self.clusters: list[Cluster] = clusters_of(self._classes, inputs, movable, self._parts)
        self.plan: Plan = tuple([split_axis(cluster.variables[0].policy.layout) for cluster in self.clusters])
        self.tried: tuple[Candidate, ...] = ()

    @property
    def is_about_something(self) -> bool:
        """True if a product or a look-up of the program uses a variable that can be split."""
        # Other programs, such as one that makes or resets variables, show nothing to choose by.
        return any(cluster.uses and cluster.splits for cluster in self.clusters)

    def layouts(self, plan: Plan) -> dict[Variable, Layout]:
        """The layouts of all variables by a plan."""
        made: dict[Variable, Layout] = {}
        for cluster, axis in zip(self.clusters, plan, strict=True):
            for variable in cluster.variables:
                made[variable] = split_at(axis, self._mesh)
        return made

    def make(self, memory_limit: int | None, tries: int) -> None:
        """Searches for the best plan; all workers agree on the first one's.

        Raises:
          ArgumentError: variables and slots alone exceed the limit, however they are split.
        """
        if memory_limit is not None:
            self._check(memory_limit)
        progress = Progress(tries)

        def judge(name: str, plan: Plan) -> Candidate:
            judged = self.judge(name, self.layouts(plan))
            progress.compiled()
            return judged

        search = Search(self.clusters, judge, memory_limit, _memory_of(self._mesh), tries)
        plan = search.best(self.plan)
        self.tried = tuple(search.tried.values())
        # Compilers of different workers may count differently, and one program needs one layout.
        if self._mesh.peers is not None:
            plan = tuple(json.loads(self._mesh.peers.exchange("automatic layout", json.dumps(plan))[0]))
        self.plan = plan
        best = min(self.tried, key=attrgetter("memory"))
        # What the compiler needs is an estimate, so that the program may fit nevertheless.
        if best.memory > search.limit and jax.process_index() == 0:
            needs = "more than that" if math.isinf(best.memory) else bytes_text(best.memory)
            whose = "a device has" if memory_limit is None else f"memory_limit={memory_limit} allows"
            Callers.warn(
                f"no layout fits of the {len(self.tried)} that were compiled: {whose} {bytes_text(search.limit)}, and "
                f"the most frugal one ({best.name!r}) needs {needs} on each device, {bytes_text(self._state())} of it "
                f"for variables and slots. HINT: {_SMALLER}"
            )

    def _check(self, limit: int) -> None:
        """Refuses a limit that nothing can meet."""
        least = self._state(least=True)
        if least > limit:
            raise ArgumentError(
                f"memory_limit is {limit}, {bytes_text(limit)} on each device, and variables and slots alone take "
                f"{bytes_text(least)} there, split over {self._parts} devices as far as they can be. HINT: {_SMALLER}"
            )

    def _state(self, *, least: bool = False) -> int:
        """Bytes of variables and slots on each device: by the plan, or by the most frugal one there is."""
        found: dict[Variable, int] = {variable: _held(variable, variable.policy) for variable in self._inputs}
        for cluster, axis in zip(self.clusters, self.plan, strict=True):
            for variable in cluster.variables:
                axes = (*cluster.splits, axis) if least else (axis,)
                policies = [laid_out(variable.policy, split_at(one, self._mesh)) for one in axes]
                found[variable] = min(_held(variable, policy) for policy in policies)
        return sum(found.values())

    def entries(self) -> FoundLayouts:
        """The layouts by name, with their reasons; those of slots, which follow their variables, are left out."""
        made, added = FoundLayouts(), set[Variable]()

        def add(variable: Variable, layout: Layout, why: str) -> None:
            # A layout map looks for its keys anywhere in a name: this one is to fit that name alone.
            key = f"^{re.escape(variable.name.removesuffix(':0'))}$"
            if not variable.derived and variable not in added:
                added.add(variable)
                made.add(key, layout, LayoutMap.Note(variable.shape, why))

        for place, (cluster, axis) in enumerate(zip(self.clusters, self.plan, strict=True)):
            why = reasons.reason(self.clusters, self.plan, place, self._parts, self._classes)
            for variable in cluster.variables:
                add(variable, split_at(axis, self._mesh), why)
        for variable in self._inputs:
            if variable in self._movable and variable.shape:
                flat = variable.policy.cut is not None
                add(variable, variable.policy.layout, reasons.IN_PIECES if flat else reasons.AS_MADE)
        return made


class Progress:
    """Tells on the first worker's standard error how far a search has come, if it takes long.

    Args:
      tries: the most programs that are compiled.
    """

    def __init__(self, tries: int) -> None:
        self._tries, self._count = tries, 0
        self._begun = self._told = time.monotonic()

    def compiled(self) -> None:
        """Counts a program."""
        self._count += 1
        now = time.monotonic()
        if now - self._told < _QUIET_S or jax.process_index() != 0:
            return
        if self._told == self._begun:
            sys.stderr.write(_HOW)
        self._told = now
        spent = now - self._begun
        left = spent / self._count * (self._tries - self._count)
        sys.stderr.write(
            f"jaxtribute: looking for a layout; {self._count} of at most {self._tries} programs compiled in "
            f"{spent:.0f} s, at most {left:.0f} s to go\n"
        )


def settle(chosen: AutomaticLayout, mesh: ReplicaMesh, traced: Capture, leaves: Sequence[Any]) -> None:
    """Lays out the variables of a program that no program has decided on yet.

    Args:
      chosen: the strategy's automatic layout, which the choice is added to.
      mesh: the replicas' devices.
      traced: the program.
      leaves: the arrays of its arguments.
    """
    touched = [v for v in (*traced.executor.inputs, *traced.executor.written) if isinstance(v, Variable)]
    pending = set(filter(chosen.is_pending, touched))
    if not pending:
        return
    # The library's own variables, such as slots, go with what is pending: nobody asked for a layout of theirs.
    own = {variable for variable in touched if variable.derived and variable.policy.mesh == mesh}
    choice = Choice(traced, leaves, mesh, pending | own)
    if not choice.is_about_something:
        # What it writes keeps its layout; what it only reads waits for a program that uses it in a product.
        for variable in pending & set(traced.executor.written):
            chosen.settle(variable)
        return
    choice.make(chosen.memory_limit, chosen.tries)
    # Nobody may give up the arrays of a variable while they are moved.
    with updating:
        for variable, layout in choice.layouts(choice.plan).items():
            if layout != variable.policy.layout:
                variable.lay_out(laid_out(variable.policy, layout))
    entries = choice.entries()
    chosen.join(entries)
    chosen.tried = choice.tried
    for variable in pending:
        chosen.settle(variable)
    _LOG.info("the automatic layout:\n%s", entries)


def automatic_layout(
    step: Callable[..., Any], *args: Nest, memory_limit: int | None = None, tries: int = TRIES, **kwargs: Nest
) -> LayoutMap:
    """Chooses how the variables of a training step lie on the devices of a replica, and says why.

    The step is traced and compiled for several layouts; it does not run, and the variables stay where they are. Print
    the result, save it, edit it, load it, and give it to a strategy as its `layout`.

    Args:
      step: a `jd.function`, or a function that could be one, with `strategy.run` inside.
      args: what it is called with, such as a batch of a distributed dataset.
      memory_limit: bytes on each device that the step may need. By default a quarter more than the most frugal
        candidate, and what the device has.
      tries: the most programs that are compiled.
      kwargs: further arguments of the step.

    Returns:
      A `jd.LayoutMap` with a key for each variable that the step uses, and a note of its shape and the reason. Names of
      several variables that lie differently have none, and it cannot be saved then.

    Raises:
      ArgumentError: the step uses no variables of a strategy whose replicas have several devices; variables and slots
        alone exceed the limit.
    """
    function = step.python_function if isinstance(step, Function) else step
    leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=_is_variable)
    places: list[int] = []
    arrays: list[Any] = []
    for place, leaf in enumerate(leaves):
        if Nests.is_array(leaf) and not isinstance(leaf, Variable):
            places.append(place)
            arrays.append(leaf)

    def call(given: Sequence[Any]) -> Any:
        whole = list(leaves)
        for place, value in zip(places, given, strict=True):
            whole[place] = value
        positional, named = tree.unflatten(whole)
        return function(*positional, **named)

    traced = Capture.of(call, Context.current(), arrays)
    variables = {variable for variable in traced.executor.inputs if isinstance(variable, Variable)}
    meshes = {variable.policy.mesh for variable in variables}
    mesh = next((mesh for mesh in meshes if mesh is not None and mesh.group), None)
    if mesh is None:
        raise ArgumentError(
            f"{getattr(step, '__name__', 'the step')} uses no variable of replicas of several devices. "
            "HINT: make the variables in the scope of a strategy with devices_per_replica=2 or more."
        )
    choice = Choice(traced, arrays, mesh, {variable for variable in variables if variable.policy.mesh == mesh})
    if choice.is_about_something:
        limits = AutomaticLayout(memory_limit=memory_limit, tries=tries)  # which checks them
        choice.make(limits.memory_limit, limits.tries)
    return choice.entries()


def _held(variable: Variable, policy: Policy) -> int:
    """Bytes of a variable on each device, stored by a policy."""
    return bytes_on_each(variable.stored.shape, variable.dtype, policy.where)


def _is_variable(leaf: Leaf) -> bool:
    return isinstance(leaf, Variable)


def _memory_of(mesh: ReplicaMesh) -> int | None:
    """Bytes that a device has for arrays; None if it does not say."""
    if mesh.described:
        return None  # the compiler refuses what does not fit
    return (mesh.local_devices[0].memory_stats() or {}).get("bytes_limit")
