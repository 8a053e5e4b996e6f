"""Chooses the operations of a program that run on the parameter device, and the number of stages.

A program over central variables alternates between two places: the *mesh* of the replicas and the *parameter*
device. `place` puts there what depends on variables only, or what only variables depend on, and everything else on
the mesh, and cuts the program into stages that each run in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.sharding import PartitionSpec

from jaxtribute._src.execution.inference import varying_values
from jaxtribute._src.jaxprs.core import Jaxpr, JaxprEqn, Literal
from jaxtribute._src.jaxprs.kinds import mentions
from jaxtribute._src.jaxprs.making import state_p
from jaxtribute._src.jaxprs.walking import any_in, used_by, variables
from jaxtribute._src.values.mesh import AXIS

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
    places = _Places(jaxpr, central, split, state)
    eqns, numbers = places.stages()
    last = max([1, *(number for number in numbers if number is not None)])
    last += last % 2 == 0
    stages = [Stage(on_mesh=number % 2 == 0) for number in range(-1, last + 1)]
    for eqn, number in zip(eqns, numbers, strict=True):
        stages[(last if number is None else number) + 1].eqns.append(eqn)
    _connect(jaxpr, stages)
    return stages


class _Places:
    """The analysis behind `place`."""

    def __init__(self, jaxpr: Jaxpr, central: Sequence[bool], split: Sequence[bool], state: Sequence[bool]) -> None:
        self._jaxpr = jaxpr
        self._bound = [any_in(eqn, _is_bound) for eqn in jaxpr.eqns]
        self._split = {var for var, flag in zip(jaxpr.invars, split, strict=True) if flag}
        self._own = {var for var, flag in zip(jaxpr.invars, central, strict=True) if flag}
        self._spread()
        results = [atom for atom, flag in zip(jaxpr.outvars, state, strict=True) if not flag]
        self._wanted = set(variables(results)) - self._own
        self._chosen = self._choose()

    def _spread(self) -> None:
        """Finds what is split over the replicas, and what depends on variables only."""
        for eqn, bound in zip(self._jaxpr.eqns, self._bound, strict=True):
            inputs = variables(eqn.invars)
            if eqn.primitive is state_p:
                self._own.update(eqn.outvars)
            elif eqn.primitive.name == "shard_map":
                specs = eqn.params["out_specs"]
                self._split.update(var for var, spec in zip(eqn.outvars, specs, strict=True) if any(spec))
            elif not bound and any(var in self._split for var in inputs):
                self._split.update(eqn.outvars)
            elif not bound and not eqn.effects and inputs and all(var in self._own for var in inputs):
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
                chosen.extend((one, False) for one in reversed(rest))
            inputs = variables(eqn.invars)
            tied = bound or bool(eqn.effects) or any(var in self._split for var in inputs)
            # The mark says that the value belongs on the parameter device, wherever it was computed.
            tied = tied and eqn.primitive is not state_p
            owned = eqn.primitive is state_p or all(var in self._own for var in eqn.outvars)
            free = not tied and (owned or not any(var in wanted for var in eqn.outvars))
            chosen.append((eqn, not free))
            if not free:
                wanted.update(inputs)
        chosen.reverse()
        return chosen

    def stages(self) -> tuple[list[JaxprEqn], list[int | None]]:
        """The operations and the numbers of their stages: odd on the parameter device; None for the last one there."""
        made: dict[Any, tuple[bool, int]] = {}
        numbers: list[int | None] = []
        for (eqn, on_mesh), soon in zip(self._chosen, self._early(), strict=True):
            # What no replica waits for is left to the last stage, where it delays none.
            if not on_mesh and not soon:
                numbers.append(None)
                continue
            # The earliest stage of its place that has all operands: each change of place costs a copy.
            number = 0 if on_mesh else -1
            for var in variables(eqn.invars):
                if var in made:
                    place, at = made[var]
                    number = max(number, at if place == on_mesh else at + 1)
            made.update(dict.fromkeys(eqn.outvars, (on_mesh, number)))
            numbers.append(number)
        return [eqn for eqn, _ in self._chosen], numbers

    def _early(self) -> list[bool]:
        """For each operation whether the mesh needs what it makes."""
        needed: set[Any] = set()
        flags: list[bool] = []
        for eqn, on_mesh in reversed(self._chosen):
            flags.append(on_mesh or any(var in needed for var in eqn.outvars))
            if flags[-1]:
                needed.update(variables(eqn.invars))
        flags.reverse()
        return flags


def _connect(jaxpr: Jaxpr, stages: Sequence[Stage]) -> None:
    """Fills in what the stages take and give."""
    used, constants = set(variables(jaxpr.outvars)), set(jaxpr.constvars)
    for stage in reversed(stages):
        made = {var for eqn in stage.eqns for var in eqn.outvars}
        stage.outputs = [var for eqn in stage.eqns for var in eqn.outvars if var in used]
        stage.inputs = [var for var in used_by(stage.eqns) if var not in made and var not in constants]
        used.update(stage.inputs)


def _is_bound(eqn: JaxprEqn) -> bool:
    """True if an operation itself names the mesh."""
    return eqn.primitive.name in _BOUND


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
    cut = [var for one in above for var in one.outvars if var in lower]
    names: dict[Any, Any] = dict(zip(jaxpr.invars, eqn.invars, strict=True))
    names.update((atom, out) for atom, out, sunk in zip(jaxpr.outvars, eqn.outvars, sinks, strict=True) if sunk)
    rest = [
        one.replace(
            invars=[atom if isinstance(atom, Literal) else names.get(atom, atom) for atom in one.invars],
            outvars=[names.get(var, var) for var in one.outvars],
        )
        for one in below
    ]
    kept = [place for place, sunk in enumerate(sinks) if not sunk]
    outputs = [*(jaxpr.outvars[place] for place in kept), *cut]
    needed = used_by(above, outputs)
    taken = [place for place, var in enumerate(jaxpr.invars) if var in needed]
    specs_in, specs_out = eqn.params["in_specs"], eqn.params["out_specs"]
    inner = jaxpr.replace(invars=[jaxpr.invars[place] for place in taken], outvars=outputs, eqns=above)
    params = {
        **eqn.params,
        "jaxpr": inner,
        "in_specs": tuple(specs_in[place] for place in taken),
        "out_specs": (*(specs_out[place] for place in kept), *(PartitionSpec() for _ in cut)),
    }
    upper = eqn.replace(
        invars=[eqn.invars[place] for place in taken],
        outvars=[*(eqn.outvars[place] for place in kept), *cut],
        params=params,
    )
    return upper, rest


def _makeable(jaxpr: Jaxpr, sinks: Sequence[bool]) -> list[bool]:
    """Leaves out outputs that no operation makes, or that are put out twice."""
    made = {var for eqn in jaxpr.eqns for var in eqn.outvars}
    times: dict[Any, int] = {}
    for var in variables(jaxpr.outvars):
        times[var] = times.get(var, 0) + 1
    return [
        sunk and not isinstance(atom, Literal) and atom in made and times[atom] == 1
        for atom, sunk in zip(jaxpr.outvars, sinks, strict=True)
    ]


def _divide(eqn: JaxprEqn, jaxpr: Jaxpr, sinks: list[bool]) -> tuple[list[JaxprEqn], list[JaxprEqn]]:
    """The operations that stay and those that sink; outputs that turn out to be made by the former stay too."""
    varies = varying_values(jaxpr, [any(spec) for spec in eqn.params["in_specs"]])
    outputs = list(zip(jaxpr.outvars, sinks, strict=True))
    stay = set(variables([atom for atom, sunk in outputs if not sunk]))
    go = {atom for atom, sunk in outputs if sunk}
    above: list[JaxprEqn] = []
    below: list[JaxprEqn] = []
    for one in reversed(jaxpr.eqns):
        asked = any(var in stay for var in one.outvars)
        sunk = any(var in go for var in one.outvars)
        if asked or one.effects or (sunk and _meets(one, varies)):
            above.append(one)
            stay.update(variables(one.invars))
        elif sunk:
            below.append(one)
            go.update(variables(one.invars))
    above.reverse()
    below.reverse()
    made = {var for one in below for var in one.outvars}
    for place, atom in enumerate(jaxpr.outvars):
        sinks[place] = sinks[place] and atom in made
    return above, below


def _meets(eqn: JaxprEqn, varies: set[Any]) -> bool:
    """True if an operation needs all replicas, or has or gives what may differ between them."""
    return any(var in varies for var in (*variables(eqn.invars), *eqn.outvars)) or mentions(eqn, AXIS)
