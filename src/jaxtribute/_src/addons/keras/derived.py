"""Logs that are computed of metrics' values alone, such as a perplexity of a mean: computed again of merged values.

A replica's metrics start a step from zero, so what it computes of them is of its own rows of this batch. A metric's own
result is computed again once the replicas' values are merged. What is computed of such results the step's program
tells: it is traced with the metrics' start values marked, and followed back from each log to the metrics' new values.
If it needs nothing else of the batch, that part of the program is kept, and run on merged values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import keras
import numpy as np

from jaxtribute import REPLICA_AXIS as AXIS
from jaxtribute import Variable
from jaxtribute._src.addons.keras import internals
from jaxtribute._src.addons.keras.forms import form_of
from jaxtribute._src.addons.keras.internals import KerasModel
from jaxtribute._src.addons.keras.merging import metric_p
from jaxtribute._src.addons.keras.parts import Ends
from jaxtribute._src.addons.keras.rows import FACTOR, ROWS
from jaxtribute._src.addons.keras.share import Path, Share
from jaxtribute._src.addons.keras.tracing import traced_step
from jaxtribute.extending import Callers, JaxprEqn, Literal, Programs, TracedReplica, Tracer
from jaxtribute.typing import Nest

_Input: TypeAlias = "int | Variable"
"""The place of a metric's variable, or another variable, which has its value from before the step."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True)
class DerivedLog:
    """A log as a function of metrics' values.

    Attributes:
      program: the function.
      inputs: what it takes.
      tree: the structure of the log.
    """

    program: Any
    inputs: Sequence[_Input]
    tree: Any

    def of(self, metrics: Sequence[Any]) -> Any:
        """The log of these values of the metrics' variables."""
        given = [metrics[one] if isinstance(one, int) else one.read_value() for one in self.inputs]
        return self.tree.unflatten(Programs.evaluate(self.program, given, lambda *_: None))

    def is_like(self, other: DerivedLog) -> bool:
        """True if another one is the same function, of the same inputs."""
        inputs, others = ([one if isinstance(one, int) else id(one) for one in log.inputs] for log in (self, other))
        return inputs == others and self._written() == other._written()

    def _written(self) -> tuple[str, list[bytes]]:
        numbers = [np.asarray(number).tobytes() for number in Programs.constants(self.program)]
        return _ADDRESS.sub("", str(self.program)), numbers


class DerivedLogs:
    """Finds the logs of a model's step that are functions of metrics' values, once for each form of a batch.

    Args:
      model: the model.
      kind: of the step: "train" or "test".
      variables: the metrics' variables.
      ends: the step up to its metrics.
      weighs_later: see `InStep`.
    """

    def __init__(
        self,
        model: KerasModel,
        kind: str,
        variables: Sequence[Any],
        ends: Callable[[Share, Any], Ends],
        *,
        weighs_later: bool = False,
    ) -> None:
        self._model, self._variables, self._ends, self._weighs_later = model, variables, ends, weighs_later
        # Keras's own steps give results of metrics, and nothing else.
        self._plain = not internals.makes_logs(model, kind)
        self._known: dict[Any, Mapping[Path, DerivedLog]] = {}
        self._told: set[Path] = set()

    def tell(self, share: Share, batch: Nest) -> None:
        """Tells a replica which logs are to be computed of merged metrics; warns of those that only in part are."""
        if share.alone or self._plain:
            return
        key = form_of(batch)
        if key not in self._known:
            self._known[key] = self._found(share, batch)
        share.derived = self._known[key]

    def _found(self, share: Share, batch: Nest) -> Mapping[Path, DerivedLog]:
        try:
            one = self._traced(share, batch, ROWS)
            if not one.meets_metrics():
                return {}
            pair = [one, self._traced(share, batch, ROWS * FACTOR)]
            if any(log is None for traced in pair for log in traced.derived().values()):
                # What is mixed in a function that the user has compiled may be apart in it.
                with share.context.strategy.extended.mesh.within():
                    pair = [traced.inlined() for traced in pair]
            found, others = (traced.derived() for traced in pair)
        except Exception:  # noqa: BLE001 (user code may fail on other numbers of rows in any way, and is told of it)
            return {}
        derived: dict[Path, DerivedLog] = {}
        for path, log in found.items():
            other = others.get(path)
            if log is not None and other is not None and log.is_like(other):
                derived[path] = log
        self._say([path for path in found if path not in derived and path not in self._told])
        return derived

    def _traced(self, share: Share, batch: Nest, rows: int) -> _Traced:
        """The step with so many rows, as a program of its metrics' new values and the logs that are no results."""
        changed: list[int] = []
        logs: dict[Path, Any] = {}
        replicas: list[TracedReplica] = []

        def step(part: Share, batch: Nest, replica: TracedReplica) -> list[Any]:
            part.marks_metrics = True
            replicas.append(replica)
            start, ends, shown, _ = self._ends(part, batch)
            changed.extend(changed_places(start, ends))
            results = results_of(self._model, self._variables, ends, changed)
            leaves: list[Any] = []
            for path, value in _other_logs(shown, results):
                own, logs[path] = jax.tree.flatten(value)
                leaves += own
            return [*(ends[place] for place in changed), *leaves]

        program = traced_step(share, batch, rows, step, weighs_later=self._weighs_later)
        axes = [(AXIS, share.context.strategy.extended.mesh.size)]
        return _Traced(program, axes, changed, logs, replicas[0].inputs)

    def _say(self, paths: Sequence[Path]) -> None:
        if not paths:
            return
        self._told.update(paths)
        names = ", ".join(repr("/".join(map(str, path))) for path in paths)
        Callers.warn(
            f"{names} in the logs of {self._model.name!r} is computed of a metric and of something else that a step "
            "computes: the replicas' values of the last batch are averaged, which leaves out what the metric has of "
            "earlier batches. HINT: give it a metric of its own, such as keras.metrics.Mean, compute it in the "
            "result() of a metric, or of results alone."
        )


@dataclass(frozen=True)
class _Traced:
    """A step's program, whose outputs are new values of metrics' variables, then what logs consist of.

    Attributes:
      program: the program.
      axes: the axes that it names, and their sizes.
      changed: the places of the variables.
      logs: the structure of each log.
      read: the variables that the step has read.
    """

    program: Any
    axes: list[tuple[str, int]]
    changed: list[int]
    logs: Mapping[Path, Any]
    read: Sequence[Any]

    def meets_metrics(self) -> bool:
        """True if a log depends on a metric's value in any way."""
        return bool(self.derived())

    def derived(self) -> dict[Path, DerivedLog | None]:
        """The logs that depend on metrics' values; None for those that depend on more."""
        opened = Programs.opened(self.program)
        outputs = list(opened.outvars)
        first, ends = len(self.changed), _Ends(self)
        found: dict[Path, DerivedLog | None] = {}
        for path, tree in self.logs.items():
            own = outputs[first : first + tree.num_leaves]
            first += tree.num_leaves
            cut = ends.cut(own)
            if cut.met:
                program = None if cut.mixed else Programs.piece(self.program, list(cut.inputs), cut.made(opened), own)
                found[path] = None if program is None else DerivedLog(program, list(cut.inputs.values()), tree)
        return found

    def inlined(self) -> _Traced:
        """The same, with the operations of functions that it calls in their places."""

        def inside(eqn: JaxprEqn, operands: list[Any]) -> Sequence[Any] | None:
            inner = Programs.called(eqn)
            return None if inner is None else Programs.evaluate(inner, operands, inside)

        avals = [Programs.aval(var) for var in Programs.opened(self.program).invars]
        program = jax.make_jaxpr(lambda *leaves: Programs.evaluate(self.program, leaves, inside), axis_env=self.axes)
        return _Traced(program(*avals), self.axes, self.changed, self.logs, self.read)


class _Cut:
    """The part of a program that makes some values of metrics' new ones.

    Attributes:
      inputs: the values that it begins with, by the program's variables.
      eqns: the ids of its operations.
      met: True if it depends on a metric's value.
      mixed: True if it depends on more than metrics and variables.
    """

    def __init__(self) -> None:
        self.inputs: dict[Any, _Input] = {}
        self.eqns: set[int] = set()
        self.met = self.mixed = False

    def made(self, whole: Any) -> list[JaxprEqn]:
        """Its operations, in the order of the whole program."""
        return [eqn for eqn in whole.eqns if id(eqn) in self.eqns]


class _Ends:
    """Values that a program may be followed back to: new ones of metrics, old ones if a step leaves them alone.

    Args:
      traced: the program.
    """

    def __init__(self, traced: _Traced) -> None:
        self._changed, self._read = frozenset(traced.changed), traced.read
        opened = Programs.opened(traced.program)
        self._makers: dict[Any, JaxprEqn] = {var: eqn for eqn in opened.eqns for var in eqn.outvars}
        self._constants = dict(zip(opened.constvars, Programs.constants(traced.program), strict=True))
        self._places: dict[Any, set[int]] = {}
        for place, var in zip(traced.changed, opened.outvars, strict=False):
            if not isinstance(var, Literal):
                self._places.setdefault(var, set()).add(place)

    def cut(self, outputs: Sequence[Any]) -> _Cut:
        """Follows some values of the program back."""
        cut, waiting = _Cut(), list(outputs)
        while waiting:
            atom = waiting.pop()
            if isinstance(atom, Literal) or atom in cut.inputs:
                continue
            eqn = self._makers.get(atom)
            if atom in self._places:
                self._meet(cut, atom, self._places[atom])
            elif eqn is None:
                # A constant of another trace will be another value in the next step.
                cut.mixed |= atom not in self._constants or isinstance(self._constants[atom], Tracer)
            elif eqn.primitive is metric_p:
                self._meet(cut, atom, {eqn.params["place"]} - self._changed)
            elif eqn.primitive.name == "jd_variable":
                self._take(cut, atom, self._read[eqn.params["key"]])
            elif id(eqn) not in cut.eqns:
                cut.eqns.add(id(eqn))
                cut.mixed |= Programs.mentions(eqn, AXIS) or not Programs.repeatable(eqn)
                waiting += eqn.invars
        return cut

    @staticmethod
    def _meet(cut: _Cut, atom: Any, places: set[int]) -> None:
        """Begins with a metric's value; not with one of several metrics, nor with one that the step replaces."""
        cut.met = True
        if len(places) == 1:
            cut.inputs[atom] = next(iter(places))
        else:
            cut.mixed = True

    @staticmethod
    def _take(cut: _Cut, atom: Any, variable: Any) -> None:
        if isinstance(variable, Variable) and not variable.policy.by_rows:
            cut.inputs[atom] = variable
        else:
            cut.mixed = True


def _other_logs(logs: Mapping[Any, Any], results: Mapping[Any, Any], outer: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The logs, which may be nested, that are no metric's own result, and consist of numbers."""
    for name, value in logs.items():
        path = *outer, name
        if name in results:
            continue
        if isinstance(value, dict):
            yield from _other_logs(value, results, path)
        elif all(hasattr(leaf, "dtype") or isinstance(leaf, (int, float)) for leaf in jax.tree.leaves(value)):
            yield path, value


def changed_places(start: Sequence[Any], ends: Sequence[Any]) -> list[int]:
    """The places of the variables that a step has given new values."""
    return [place for place, (old, new) in enumerate(zip(start, ends, strict=True)) if new is not old]


def results_of(
    model: KerasModel, variables: Sequence[Any], values: Sequence[Any], places: Sequence[int]
) -> dict[str, Any]:
    """The results of the metrics that a step has updated.

    Args:
      model: the model.
      variables: its metrics' variables.
      values: the values that these are to have.
      places: the places of the variables that the step has changed.
    """
    touched = {id(variables[place]) for place in places}
    results: dict[str, Any] = {}
    with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
        for metric in model.metrics:
            if any(id(variable) in touched for variable in metric.variables):
                result = metric.result()
                # Logs may have those of several metrics in one entry, or each in its own.
                results.update({metric.name: result, **(result if isinstance(result, dict) else {})})
    return results
