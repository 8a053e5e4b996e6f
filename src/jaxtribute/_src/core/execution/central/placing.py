"""Chooses the operations of a program that run on the parameter device, and the number of stages.

A program over central variables alternates between two places: the *mesh* of the replicas and the *parameter*
device. `place` puts there what depends on variables only, or what only variables depend on, and everything else on
the mesh, and cuts the program into stages that each run in one place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.sharding import PartitionSpec

from jaxtribute._src.core.execution.capture import varying_values
from jaxtribute._src.core.jaxprs.core import Jaxpr, JaxprEqn, Literal
from jaxtribute._src.core.jaxprs.kinds import mentions
from jaxtribute._src.core.jaxprs.making import state_p
from jaxtribute._src.core.jaxprs.walking import any_in, used_by, variables
from jaxtribute._src.core.values.mesh import AXIS

_BOUND = frozenset({"shard_map", "sharding_constraint"})


@dataclass(slots=True)
class Stage:
    """A part of a program that runs in one place.

    Attributes:
      on_mesh: whether it runs on the mesh of the replicas.
      eqns: its operations, in order.
      inputs: the values that it uses and does not make.
      outputs: the values that it makes and others use.
    """

    on_mesh: bool
    eqns: list[JaxprEqn] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)


def place(jaxpr: Jaxpr, central: Sequence[bool], split: Sequence[bool], state: Sequence[bool]) -> list[Stage]:
    """Cuts a program into stages, the first and the last of which run on the parameter device.

    Args:
      jaxpr: the program.
      central: for each input whether it is a central variable's value.
      split: for each input whether it is an array split over the replicas.
      state: for each output whether it is a central variable's new value.

    Returns:
      The stages in order, parameter device and mesh in turn; the first and last may have no operations.
    """
    numbered = _Places(jaxpr, central, split, state).numbered()
    last = 1
    for _, number in numbered:
        if number is not None:
            last = max(last, number)
    # The new values belong on the parameter device, so the last stage runs there, though it may have nothing to do.
    last += last % 2 == 0
    stages = [Stage(on_mesh=number % 2 == 0) for number in range(-1, last + 1)]
    for eqn, number in numbered:
        stages[(last if number is None else number) + 1].eqns.append(eqn)
    _connect(jaxpr, stages)
    return stages


def made_by(eqns: Iterable[JaxprEqn]) -> Iterator[Any]:
    """The values that operations make, in order."""
    for eqn in eqns:
        yield from eqn.outvars


def parted(values: Iterable[Any], flags: Iterable[bool]) -> tuple[list[Any], list[Any]]:
    """The values whose flag is set, and the others, each in order."""
    flagged: list[Any] = []
    others: list[Any] = []
    for value, flag in zip(values, flags, strict=True):
        (flagged if flag else others).append(value)
    return flagged, others


class _Places:
    """The analysis behind `place`."""

    def __init__(self, jaxpr: Jaxpr, central: Sequence[bool], split: Sequence[bool], state: Sequence[bool]) -> None:
        self._jaxpr = jaxpr
        self._bound = [any_in(eqn, lambda one: one.primitive.name in _BOUND) for eqn in jaxpr.eqns]
        self._split = set(parted(jaxpr.invars, split)[0])
        self._own = set(parted(jaxpr.invars, central)[0])
        self._spread()
        _, results = parted(jaxpr.outvars, state)
        self._wanted = set(variables(results)) - self._own
        self._chosen = self._choose()

    def _spread(self) -> None:
        """Finds what is split over the replicas, and what depends on variables only."""
        for eqn, bound in zip(self._jaxpr.eqns, self._bound, strict=True):
            inputs = variables(eqn.invars)
            if eqn.primitive is state_p:
                self._own.update(eqn.outvars)
            elif eqn.primitive.name == "shard_map":
                split, _ = parted(eqn.outvars, map(any, eqn.params["out_specs"]))
                self._split.update(split)
            elif not bound and not self._split.isdisjoint(inputs):
                self._split.update(eqn.outvars)
            elif not bound and not eqn.effects and inputs and self._own.issuperset(inputs):
                self._own.update(eqn.outvars)

    def _choose(self) -> list[tuple[JaxprEqn, bool]]:
        """The operations, each with whether it runs on the mesh; what replicas need not compute has left them."""
        chosen: list[tuple[JaxprEqn, bool]] = []
        wanted = self._wanted
        # From the results back: whether an operation may leave the mesh depends on who wants what it makes.
        for eqn, bound in zip(reversed(self._jaxpr.eqns), reversed(self._bound), strict=True):
            sinks = [var not in wanted and var not in self._split for var in eqn.outvars]
            if eqn.primitive.name == "shard_map" and any(sinks):
                eqn, rest = sink(eqn, sinks)
                chosen.extend((later, False) for later in reversed(rest))
            inputs = variables(eqn.invars)
            tied = bound or bool(eqn.effects) or not self._split.isdisjoint(inputs)
            # The mark says that the value belongs on the parameter device, wherever it was computed.
            tied = tied and eqn.primitive is not state_p
            owned = eqn.primitive is state_p or self._own.issuperset(eqn.outvars)
            free = not tied and (owned or wanted.isdisjoint(eqn.outvars))
            chosen.append((eqn, not free))
            if not free:
                wanted.update(inputs)
        chosen.reverse()
        return chosen

    def numbered(self) -> list[tuple[JaxprEqn, int | None]]:
        """The operations and the numbers of their stages: odd on the parameter device; None for the last one there."""
        made: dict[Any, tuple[bool, int]] = {}
        numbered: list[tuple[JaxprEqn, int | None]] = []
        for (eqn, on_mesh), soon in zip(self._chosen, self._early(), strict=True):
            # What no replica waits for is left to the last stage, where it delays none.
            if not on_mesh and not soon:
                numbered.append((eqn, None))
                continue
            # The earliest stage of its place that has all operands: each change of place costs a copy.
            number = 0 if on_mesh else -1
            for var in variables(eqn.invars):
                if var in made:
                    place, at = made[var]
                    number = max(number, at if place == on_mesh else at + 1)
            made.update(dict.fromkeys(eqn.outvars, (on_mesh, number)))
            numbered.append((eqn, number))
        return numbered

    def _early(self) -> list[bool]:
        """For each operation whether the mesh needs what it makes."""
        needed: set[Any] = set()
        flags: list[bool] = []
        for eqn, on_mesh in reversed(self._chosen):
            flags.append(on_mesh or not needed.isdisjoint(eqn.outvars))
            if flags[-1]:
                needed.update(variables(eqn.invars))
        flags.reverse()
        return flags


def _connect(jaxpr: Jaxpr, stages: Sequence[Stage]) -> None:
    """Fills in what the stages take and give."""
    used, constants = set(variables(jaxpr.outvars)), set(jaxpr.constvars)
    # Backwards, since a stage puts out what a later one, or the program itself, uses.
    for stage in reversed(stages):
        inside = constants.union(made_by(stage.eqns))
        stage.outputs = [var for var in made_by(stage.eqns) if var in used]
        stage.inputs = [var for var in used_by(stage.eqns) if var not in inside]
        used.update(stage.inputs)


def sink(eqn: JaxprEqn, sinks: Sequence[bool]) -> tuple[JaxprEqn, list[JaxprEqn]]:
    """Splits a `shard_map` over the replicas.

    Args:
      eqn: the `shard_map`.
      sinks: for each of its outputs whether it is wanted on the parameter device only.

    Returns:
      The `shard_map` of what must stay, which also puts out what the rest needs, and the rest: operations that make
      the outputs that sink. Outputs that no operation makes out of reduced values stay.
    """
    jaxpr: Jaxpr = eqn.params["jaxpr"]
    sinks = _makeable(jaxpr, sinks)
    above, below = _divide(eqn, jaxpr, sinks)
    lower = used_by(below)
    # The values at which the program is cut are the same on all replicas (`_meets`), so they come out whole.
    cut = [var for var in made_by(above) if var in lower]
    inner_sunk, inner_kept = parted(jaxpr.outvars, sinks)
    sunk, kept = parted(eqn.outvars, sinks)
    _, specs_kept = parted(eqn.params["out_specs"], sinks)
    # The rest leaves the `shard_map`: what it called by inner names it finds around it.
    names: dict[Any, Any] = dict(zip(jaxpr.invars, eqn.invars, strict=True))
    names.update(zip(inner_sunk, sunk, strict=True))
    rest = [low.replace(invars=_named(low.invars, names), outvars=_named(low.outvars, names)) for low in below]
    outputs = [*inner_kept, *cut]
    needed = used_by(above, outputs)
    takes = [var in needed for var in jaxpr.invars]
    inner = jaxpr.replace(invars=parted(jaxpr.invars, takes)[0], outvars=outputs, eqns=above)
    params = {
        **eqn.params,
        "jaxpr": inner,
        "in_specs": tuple(parted(eqn.params["in_specs"], takes)[0]),
        "out_specs": (*specs_kept, *[PartitionSpec()] * len(cut)),
    }
    return eqn.replace(invars=parted(eqn.invars, takes)[0], outvars=[*kept, *cut], params=params), rest


def _named(atoms: Sequence[Any], names: dict[Any, Any]) -> list[Any]:
    """Operands or results under other names, where they have one."""
    return [atom if isinstance(atom, Literal) else names.get(atom, atom) for atom in atoms]


def _makeable(jaxpr: Jaxpr, sinks: Sequence[bool]) -> list[bool]:
    """Leaves out outputs that no operation makes, or that are put out twice."""
    made = set(made_by(jaxpr.eqns))
    times = Counter(variables(jaxpr.outvars))
    return [
        sunk and not isinstance(atom, Literal) and atom in made and times[atom] == 1
        for atom, sunk in zip(jaxpr.outvars, sinks, strict=True)
    ]


def _divide(eqn: JaxprEqn, jaxpr: Jaxpr, sinks: list[bool]) -> tuple[list[JaxprEqn], list[JaxprEqn]]:
    """The operations that stay and those that sink; outputs that turn out to be made by the former stay too."""
    varies = varying_values(jaxpr, list(map(any, eqn.params["in_specs"])))
    sinking, staying = parted(jaxpr.outvars, sinks)
    go, stay = set(sinking), set(variables(staying))
    above: list[JaxprEqn] = []
    below: list[JaxprEqn] = []
    # Backwards: an operation stays where one that stays uses what it makes, else it goes with those that do.
    for equation in reversed(jaxpr.eqns):
        asked = not stay.isdisjoint(equation.outvars)
        sunk = not go.isdisjoint(equation.outvars)
        if asked or equation.effects or (sunk and _meets(equation, varies)):
            above.append(equation)
            stay.update(variables(equation.invars))
        elif sunk:
            below.append(equation)
            go.update(variables(equation.invars))
    above.reverse()
    below.reverse()
    made = set(made_by(below))
    for place, atom in enumerate(jaxpr.outvars):
        sinks[place] = sinks[place] and atom in made
    return above, below


def _meets(eqn: JaxprEqn, varies: set[Any]) -> bool:
    """True if an operation needs all replicas, or has or gives what may differ between them."""
    return not varies.isdisjoint((*variables(eqn.invars), *eqn.outvars)) or mentions(eqn, AXIS)
