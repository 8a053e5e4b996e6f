"""Variables of users' layers that a step adds something of the rows to: of them the replicas' changes are added up.

Keras gives a layer's variable no aggregation unless asked. The mean of the replicas' values, by their rows, is right
for moving averages and for what all replicas change alike, such as a count of steps. It is wrong for a count of rows.
Which of both a variable is says the step itself: it is traced with the variable marked. A new value is the old one,
times something, and a rest that does not depend on it; what rows the rest is made of says `rows.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp

from jaxtribute import REPLICA_AXIS as AXIS
from jaxtribute._src.addons.keras import internals
from jaxtribute._src.addons.keras.forms import form_of
from jaxtribute._src.addons.keras.internals import KerasModel
from jaxtribute._src.addons.keras.merging import SEED, state_p
from jaxtribute._src.addons.keras.rows import FACTOR, ROWS, Kind, Part, Rows
from jaxtribute._src.addons.keras.share import Share
from jaxtribute._src.addons.keras.tracing import traced_step
from jaxtribute.extending import Callers, JaxprEqn, Programs, ReplicaMesh, TracedReplica
from jaxtribute.typing import Array, Nest

Ends = Callable[[Share, Any], Sequence[Any]]
"""A step, up to the new values of the model's variables that no optimizer updates."""
_Added: TypeAlias = "Literal['', 'change', 'value'] | None"
"""Part of a variable that is added up: none, as the mean is right, its change, or its new value; None if not known."""
_SAME = frozenset("copy copy_p convert_element_type reshape squeeze".split())
_PLUS = frozenset("add add_any sub".split())
_ADDED_AT = frozenset({"scatter-add", "scatter_add"})


@dataclass(frozen=True)
class _Sum:
    """A value, and the variables that it is a sum of.

    Attributes:
      value: the value.
      rest: what is left of it without those variables.
      of: the places of the variables, each with True if it is in the sum as it is, and False if it is multiplied.
      by: the places of the variables that it depends on in another way.
    """

    value: Any
    rest: Any
    of: Mapping[int, bool]
    by: frozenset[int] = frozenset()


class RunningSums:
    """Finds which variables of a model's layers are running sums, once for each form of a batch.

    Args:
      model: the model.
      variables: its variables that no optimizer updates.
      ends: its step.
    """

    def __init__(self, model: KerasModel, variables: Sequence[Any], ends: Ends) -> None:
        self._model, self._ends = model, ends
        known: set[int] = set()
        for part in internals.parts_of(model):
            # What Keras's own layers keep is known: moving averages, and states of generators. Frozen weights stay.
            known.update(map(id, internals.own_variables(part, kept=internals.is_keras(type(part)))))
        self._places = {
            place: variable
            for place, variable in enumerate(variables)
            # With any aggregation the variable says itself how the replicas' values become one.
            if variable.aggregation == "none" and variable.name != SEED and id(variable) not in known
        }
        self._known: dict[Any, Mapping[int, bool]] = {}

    def tell(self, share: Share, batch: Nest) -> None:
        """Tells a replica which variables are sums; warns of those of which that is not known."""
        # A step that takes padding has none but Keras's own layers.
        if share.alone or share.sends or share.count is not None or not self._places:
            return
        key = form_of(batch)
        if key not in self._known:
            self._known[key] = self._found(share, batch)
        share.running = self._known[key]

    def _found(self, share: Share, batch: Nest) -> Mapping[int, bool]:
        try:
            one, other = (self._traced(share, batch, ROWS * factor) for factor in (1, FACTOR))
        except Exception:  # noqa: BLE001 (user code may fail on other numbers of rows in any way, and is told of it)
            return {}
        try:
            known = self._analysed(one, other, share)
        except Exception:  # noqa: BLE001 (the two programs may differ in any way)
            known = dict.fromkeys(one.changed)
        for place, added in known.items():
            if added is None:
                self._say(self._places[place], one.line(place))
        return {id(self._places[place]): added == "change" for place, added in known.items() if added}

    def _traced(self, share: Share, batch: Nest, rows: int) -> _Traced:
        """The step with so many rows, of which it is seen which variables it changes."""
        changed: list[int] = []

        def step(part: Share, batch: Nest, _: TracedReplica) -> list[Any]:
            part.marked = frozenset(self._places)
            ends = self._ends(part, batch)
            changed.extend(place for place in self._places if ends[place] is not None)
            return [ends[place] for place in changed]

        return _Traced(traced_step(share, batch, rows, step), changed)

    def _analysed(self, one: _Traced, other: _Traced, share: Share) -> dict[int, _Added]:
        """For each variable that the step changes what is to be added up."""
        mesh: ReplicaMesh = share.context.strategy.extended.mesh
        with mesh.within():
            pair = [traced.rests([(AXIS, mesh.size)]) for traced in (one, other)]
        sums = pair[0][1]
        given = [Part(Kind.ROWS)] * len(Programs.opened(pair[0][0]).invars)
        (first, used), (second, used_too) = (
            Programs.pruned(whole, Programs.opened(whole).outvars) for whole, _ in pair
        )
        if used == used_too:
            given = [part for part, use in zip(given, used, strict=True) if use]
        parts = Rows(AXIS).outputs(first, second, given)
        return {place: _added(place, total, part) for (place, total), part in zip(sums.items(), parts, strict=True)}

    def _say(self, variable: Any, line: str | None) -> None:
        where = f" ({line})" if line else ""
        Callers.warn(
            f"a step of {self._model.name!r} gives the variable {variable.path!r} a value of the rows that is no "
            f"running sum over them and no moving average of their mean, such as a maximum or an average of sums"
            f"{where}: the replicas' values are averaged, or the first one's is taken, where one device computes it "
            "of the whole batch. HINT: compute it of what get_replica_context().all_reduce('SUM', ...) has made of the "
            "rows, as a moving average of sums must be; add sums over the rows as they are, v + sum; use a "
            "keras.metrics.Metric; or say add_weight(..., aggregation='mean') if the replicas' mean is meant."
        )


@dataclass(frozen=True)
class _Traced:
    """A program of the new values of variables, whose places are `changed`."""

    program: Any
    changed: list[int]

    def rests(self, axes: list[tuple[str, int]]) -> tuple[Any, dict[int, _Sum]]:
        """The program of what tells of a variable's new value: the rest of a sum, or the value; and those sums."""
        sums: dict[int, _Sum] = {}

        def program(*leaves: Array) -> list[Any]:
            values = map(_plain, Programs.evaluate(self.program, leaves, _apart))
            sums.update(zip(self.changed, values, strict=True))
            return [jnp.asarray(one.value if place in one.by else one.rest) for place, one in sums.items()]

        avals = [Programs.aval(var) for var in Programs.opened(self.program).invars]
        return jax.make_jaxpr(program, axis_env=axes)(*avals), sums

    def line(self, place: int) -> str | None:
        """The user's line that gives a variable its new value."""
        opened = Programs.opened(self.program)
        var = opened.outvars[self.changed.index(place)]
        maker = next((eqn for eqn in opened.eqns if any(var is one for one in eqn.outvars)), None)
        return None if maker is None else internals.line_of_user(maker)


def _added(place: int, total: _Sum, part: Part) -> _Added:
    """The part of a variable that the replicas add up; None if no known rule brings their values together."""
    if part.kind in (Kind.ZERO, Kind.SAME) or (part.kind in (Kind.ALIKE, Kind.TOTAL) and part.degree == 0):
        return ""
    if place in total.by:
        return None
    whole = total.of.get(place, True)
    if part.kind in (Kind.ALIKE, Kind.TOTAL):
        # Beside other variables the replicas' shares of these would be added up, too.
        known = whole and part.degree == 1 and not total.of.keys() - {place}
        return None if not known else "change" if place in total.of else "value"
    # Statistics such as a variance are averaged over the replicas, as those of Keras's own layers are.
    return None if total.of.get(place, False) else ""


def _plain(value: Any) -> _Sum:
    return value if isinstance(value, _Sum) else _Sum(value, value, {})


def _apart(eqn: JaxprEqn, given: list[Any]) -> list[Any]:
    """The results of an operation, as sums of marked variables."""
    terms = list(map(_plain, given))
    if eqn.primitive is state_p:
        value = terms[0].value
        return [_Sum(value, jnp.zeros_like(value), {eqn.params["place"]: True})]
    inner = Programs.called(eqn)
    if inner is not None:
        return Programs.evaluate(inner, terms, _apart)
    values = Programs.bind(eqn, [term.value for term in terms])
    by = frozenset[int]().union(*(term.by for term in terms))
    if any(term.of for term in terms):
        of = _factors(eqn.primitive.name, terms)
        if of is not None:
            return [_Sum(values[0], Programs.bind(eqn, [term.rest for term in terms])[0], of, by)]
        by = by.union(*(term.of for term in terms))
    return [_Sum(value, value, {}, by) for value in values]


def _factors(name: str, terms: list[_Sum]) -> dict[int, bool] | None:
    """The variables in an operation's result, if it gives a sum of a sum; see `_Sum.of`."""
    marked = [number for number, term in enumerate(terms) if term.of]
    if name in _SAME or (name in _ADDED_AT and marked == [0]):
        return dict(terms[0].of)
    if name == "neg" or (name == "div" and marked == [0]) or (name == "mul" and len(marked) == 1):
        return dict.fromkeys(terms[marked[0]].of, False)
    if name in _PLUS:
        one, other = terms[0].of, dict.fromkeys(terms[1].of, False) if name == "sub" else terms[1].of
        return {place: _once(place, one, other) for place in {**one, **other}}
    if name == "select_n" and 0 not in marked:
        cases = [term.of for term in terms[1:]]
        places = [place for case in cases for place in case]
        return {place: all(case.get(place, False) for case in cases) for place in places}
    return None


def _once(place: int, one: Mapping[int, bool], other: Mapping[int, bool]) -> bool:
    """True if a sum of two has a variable once, as it is."""
    return (place in one) != (place in other) and bool(one.get(place) or other.get(place))
