"""Metrics, logs and gradients as one device finds them: sums over the examples add up, means are weighted.

One device counts a number such as the loss of a batch once, whoever computes it. So a replica that updates a metric
with one number adds its share of that update, by its examples; one that updates it with a value for each example adds
all of it. Which of both it is says the step itself: it is traced for two numbers of examples, see `rows.py`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import keras
import numpy as np

from jaxtribute import REPLICA_AXIS as AXIS
from jaxtribute._src.addons.keras import internals, row_meetings
from jaxtribute._src.addons.keras.forms import form_of
from jaxtribute._src.addons.keras.internals import KerasModel
from jaxtribute._src.addons.keras.meeting import entered
from jaxtribute._src.addons.keras.row_places import DRAWN
from jaxtribute._src.addons.keras.row_wise import is_plain
from jaxtribute._src.addons.keras.rows import FACTOR, ROWS, Kind, Part, Rows
from jaxtribute._src.addons.keras.share import EXACT, Share
from jaxtribute._src.addons.keras.tracing import traced_step
from jaxtribute.errors import InputError, VariableError
from jaxtribute.extending import Callers, Literal, Programs, TracedReplica
from jaxtribute.typing import Leaf, Nest

_OF_REPLICAS = frozenset({Kind.ALIKE, Kind.TOTAL, Kind.OTHER})
"""The kinds of logs that may be others on each replica."""
_NEAR = 1e-6
"""Relative error of a number in single precision beside what a program has written."""
_REPLICAS = "num_replicas_in_sync"
_TOLD = 3
"""Number of lines that a warning lists."""
_NO_NUMBERS = (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError)
"""Errors of JAX for Python that asks a traced value for a number."""
Ends = tuple[Sequence[Any], Sequence[Any], dict[str, Any], Sequence[Any]]
"""A step's metrics: what their variables start from, what they come to, and the logs; and the layers' new values."""


@dataclass(frozen=True)
class Parts:
    """The use that a model's step makes of the rows of a batch.

    Attributes:
      shared: by the ids of variables, the power of its share of the examples by which a replica adds to them: 1 for
        means; of all others it adds all.
      summed: the names of the logs that are sums over examples, and the numbers of an optimizer's updates by gradients
        that are.
      sums_loss: True if the loss is a sum over the examples.
      added_sums: the numbers of the additional losses that are.
      picked: the highest number by which a row of the batch is taken.
      meetings: what takes rows by their places, or together with others, in words; empty if nothing does.
      powers: of a step in TensorFlow's form, the powers of the number of rows that the single numbers grow by which it
        updates metrics with: 1 for a sum over the rows.
      logs: the powers of the number of rows that its logs grow by, where replicas may have different ones.
    """

    shared: Mapping[int, int] = field(default_factory=dict[int, int])
    summed: frozenset[Hashable] = frozenset()
    sums_loss: bool = False
    added_sums: frozenset[int] = frozenset()
    picked: int = 0
    meetings: str = ""
    powers: tuple[int, ...] = ()
    logs: Mapping[str, int] = field(default_factory=dict[str, int])

    def weighted(self, share: Share, logs: Any) -> Any:
        """A step's logs, as of the whole batch."""
        powers = {name: 1 - degree for name, degree in self.logs.items() if isinstance(logs, dict) and name in logs}
        if not powers:
            return logs
        own = {name: jnp.asarray(logs[name]) * share.divisor**power for name, power in powers.items()}
        with entered(share):
            return {**logs, **share.sum(own, EXACT)}

    def check(self, model: KerasModel, share: Share) -> None:
        """Checks that a replica has the rows that the step takes by their numbers.

        Raises:
          InputError: it has fewer, where one device has them.
        """
        if 0 < share.rows <= self.picked < share.total:
            raise InputError(
                f"a step of {model.name!r} takes row {self.picked} of a batch by its number, but of {share.total} rows "
                f"this replica has {share.rows}: fit cuts the first axis of all arrays for the replicas. HINT: if the "
                "first axis is no batch, as in x[0] for anchors and x[1] for positives, give a tuple of arrays, "
                "(anchors, positives), whose first axes are batches."
            )


class PartsOfSteps:
    """Finds the parts once for each form of a batch, whatever its number of rows.

    Args:
      model: the model.
      variables: its metrics' variables.
      ends: its step up to its metrics.
      weighs_later: see `InStep`.
      writes: True if the step is one in TensorFlow's form, which writes metrics itself: nothing is weighted afterwards.
      predicts: True if the step only predicts.
    """

    def __init__(
        self,
        model: KerasModel,
        variables: Sequence[Any],
        ends: Callable[[Share, Any], Ends],
        *,
        weighs_later: bool = False,
        writes: bool = False,
        predicts: bool = False,
    ) -> None:
        self._model, self._variables, self._ends, self._weighs_later = model, variables, ends, weighs_later
        self._writes, self._predicts = writes, predicts
        self._known: dict[Any, Parts] = {}
        self._enough: set[Hashable] = set()
        """Forms of batches, with numbers of rows, of which the step takes rows by their places."""

    def tell(self, share: Share, batch: Nest) -> Parts:
        """Tells a replica what its step makes of its batch, and returns it."""
        # A step that takes padding is known to treat each row by itself.
        if share.alone or share.count is not None or self._is_plain:
            return Parts()
        key = form_of(batch)
        parts = self._known.get(key)
        if parts is None:
            parts = self._known[key] = self._found(share, batch)
        parts.check(self._model, share)
        if parts.meetings and (key, share.rows) not in self._enough:
            self._check_enough(share, batch, parts)
            self._enough.add((key, share.rows))
        share.shared, share.summed = parts.shared, parts.summed
        share.sums_loss, share.added_sums = parts.sums_loss, parts.added_sums
        return parts

    @cached_property
    def _is_plain(self) -> bool:
        return not self._writes and is_plain(self._model)

    def _check_enough(self, share: Share, batch: Nest, parts: Parts) -> None:
        """Checks that a replica has as many rows as a step needs that takes some by their places, such as halves.

        Raises:
          InputError: it has fewer, where one device has enough.
        """
        why = self._lacking(share, batch, max(share.rows, 1), parts)
        if not why or self._lacking(share, batch, share.total, parts):
            return
        raise InputError(
            f"a step of {self._model.name!r} uses {parts.meetings}, and of {share.total} rows this replica has "
            f"{share.rows}, with which it cannot compute: {why}. HINT: let the step treat all rows alike, or give a "
            "tuple of arrays, such as (anchors, positives), whose first axes are batches; get_replica_context()."
            "all_gather(x, axis=0) has the rows of all replicas."
        )

    def _lacking(self, share: Share, batch: Nest, rows: int, parts: Parts) -> str:
        """Says why the step cannot compute with so many rows; empty if it can."""
        try:
            program = self._traced(share, batch, rows, parts.added_sums).program
        except Exception as error:  # noqa: BLE001 (user code may fail on other numbers of rows in any way)
            return f"{type(error).__name__}: {str(error)[:200]}"
        return f"with {rows} it takes none" if _has_empty(program) else ""

    def _found(self, share: Share, batch: Nest) -> Parts:
        try:
            rows, outputs = self._analysed(share, batch, frozenset())
            added = frozenset(name.number for name, part in outputs.items() if _adds(name, part))
            if added:  # the loss is another one, now that these are known
                rows, outputs = self._analysed(share, batch, added)
        except (InputError, VariableError, NotImplementedError):  # what the step itself would be refused for
            raise
        except Exception as error:  # noqa: BLE001 (user code may fail on other numbers of rows in any way)
            if self._writes and self._model.run_eagerly and isinstance(error, _NO_NUMBERS):
                return Parts()  # Python that runs as it is may ask for numbers, which a trace has none of
            if self._predicts or (not isinstance(error, _NO_NUMBERS) and self._fails(share, batch)):
                return Parts()
            Callers.warn(
                f"the step of {self._model.name!r} could not be traced for other numbers of examples, so a metric that "
                "it updates with one number for each replica, such as a loss, counts each replica once, whatever its "
                f"share of the batch ({type(error).__name__}: {str(error)[:200]}). HINT: update metrics with a value "
                "for each example, or with sample_weight= the number of examples."
            )
            return Parts()
        Parts(picked=rows.picked).check(self._model, share)
        told = self._tell_meetings(rows)
        loss = _degree(outputs.get(_WHOLE, Part(Kind.ALIKE)))
        if loss not in (0, 1) and not rows.meetings:
            Callers.warn(
                f"the loss of {self._model.name!r} is no sum and no mean over the examples, such as a root, a product "
                "or a ratio of sums, or a loss of inputs that a gradient of a mean has moved: the mean of the "
                "replicas' losses, by their shares of the examples, is not what one device computes of the whole "
                "batch. HINT: divide by, or compute with, what get_replica_context().all_reduce('SUM', x) has made of "
                "sums; for a gradient with respect to inputs, differentiate a sum over the examples, and divide by "
                "the number of examples of all replicas."
            )
        numbers = [_degree(part) for name, part in outputs.items() if isinstance(name, Number)]
        if None in numbers and not told:
            Callers.warn(
                f"a metric of {self._model.name!r} is updated with one number for each replica which is no sum and no "
                "mean over its examples, such as a maximum or a root of a mean: their mean by the replicas' shares of "
                "the examples is not what one device finds in the whole batch. HINT: update it with a value for each "
                "example, or with what get_replica_context().all_reduce has made of sums."
            )
        if self._writes:
            self._tell_means(share, batch, added)
        if self._weighs_later and not told and not rows.meets:
            self._tell_unknown({name: part for name, part in outputs.items() if (name,) not in share.derived})
        logs = (name for name, part in outputs.items() if isinstance(name, str) and _degree(part) == 1)
        summed = frozenset([*logs, *_summed_updates(outputs)])
        powers = tuple(degree or 0 for degree in numbers)
        own = {name: part for name, part in outputs.items() if isinstance(name, str) and part.kind in _OF_REPLICAS}
        shown = {name: _degree(part) or 0 for name, part in own.items() if part.degree or part.kind is not Kind.ALIKE}
        return Parts(self._shared(outputs), summed, loss == 1, added, rows.picked, told, powers, shown)

    def _fails(self, share: Share, batch: Nest) -> bool:
        """True if the step fails with as many rows as it is about to run with, too: it then says itself why."""
        try:
            self._traced(share, batch, max(share.rows, 1), frozenset())
        except Exception:  # noqa: BLE001 (any error of the user's code, which is raised again where the step runs)
            return True
        return False

    def _tell_means(self, share: Share, batch: Nest, added: frozenset[int]) -> None:
        """Says that gradients are of a mean over a replica's rows, unless the step asks how many replicas there are."""
        replicas, strategy = share.context.num_replicas_in_sync, share.context.strategy
        outputs = self._analysed(share, batch, added, gradients=True)[1]
        if not any(known == {0} for known in _degrees_of_updates(outputs).values()):
            return
        mine = self._traced(share, batch, ROWS, added, gradients=True).gradients()
        with _as_of(strategy, replicas + 1):
            theirs = self._traced(share, batch, ROWS, added, gradients=True).gradients()
        if _written(mine) != _written(theirs):
            return
        unless = (
            f", unless a division by {replicas} in it is that by their number" if _divides_by(replicas, mine) else ""
        )
        Callers.warn(
            f"the step of {self._model.name!r} gives its optimizer gradients of a mean over each replica's rows, "
            f"which are added up: they are {replicas} times those of one device{unless}. HINT: take "
            "self.compute_loss(y=y, y_pred=...) or a loss object of Keras, or divide the sum over the rows by "
            "get_replica_context().all_reduce('SUM', len(rows)). If batches divide, you may also divide the mean by "
            "get_strategy().num_replicas_in_sync, asked for in the step."
        )

    def _tell_unknown(self, outputs: dict[Any, Part]) -> None:
        """Says which logs and gradients of a step of the user's own are no sums and no means over the examples."""
        metrics = [metric.name for metric in internals.metrics_of(self._model)]  # whose results are computed of sums
        logs = [name for name, part in outputs.items() if isinstance(name, str) and part.kind is Kind.OTHER]
        unknown = [f"the log {name!r}" for name in logs if not any(metric in name for metric in metrics)]
        updates: dict[int, set[Kind]] = {}
        for name, part in outputs.items():
            if isinstance(name, tuple):
                updates.setdefault(name[0], set()).add(part.kind)
        # Of what is not known, such as the gradients of a loop, the others tell.
        if any(Kind.OTHER in kinds and Kind.TOTAL not in kinds for kinds in updates.values()):
            unknown.append("what the optimizer is given")
        if unknown:
            Callers.warn(
                f"{', '.join(unknown)} of the step of {self._model.name!r} is no sum and no mean over a replica's "
                "examples, such as a norm of gradients or gradients clipped by it: its mean by the replicas' shares of "
                "the examples is not what one device computes of the whole batch. HINT: let the optimizer clip "
                "(global_clipnorm=), and compute with what get_replica_context().all_reduce('SUM', x * "
                "len(rows)) / all_reduce('SUM', len(rows)) has made of means."
            )

    def _analysed(
        self, share: Share, batch: Nest, added: frozenset[int], *, gradients: bool = False
    ) -> tuple[Rows, dict[Any, Part]]:
        """The analysis of the step, and the parts of what it computes by their names; see `_traced`."""
        # A layer such as AugMix draws what it computes where it is traced.
        drawn = random.getstate()
        one = self._traced(share, batch, ROWS, added, gradients=gradients)
        random.setstate(drawn)
        other = self._traced(share, batch, ROWS * FACTOR, added, gradients=gradients)
        random.setstate(drawn)
        rows = Rows(AXIS)
        given = [Part(Kind.ROWS)] * len(jax.tree.leaves(batch))
        # What nobody uses, such as a row whose shape is looked at, says nothing.
        first, used = Programs.pruned(one.program, Programs.opened(one.program).outvars)
        second, used_too = Programs.pruned(other.program, Programs.opened(other.program).outvars)
        if used == used_too:
            given = [part for part, use in zip(given, used, strict=True) if use]
        return rows, dict(zip(one.names, rows.outputs(first, second, given), strict=True))

    def _tell_meetings(self, rows: Rows) -> str:
        """Says, and returns, in which lines of the user's rows meet other rows, or are chosen by their places."""
        told: dict[str, str] = {}
        for what, eqn in rows.meetings:
            line = internals.line_of_user(eqn)
            if line is not None:
                told.setdefault(line, what)
        if not told:
            return ""
        unless = ", unless it is of a mean over all parts" if row_meetings.PARTS in told.values() else ""
        drawn = " Draw pairs, as MixUp does, of the whole batch before it is given." if DRAWN in told.values() else ""
        listed = ", ".join(f"{what} ({line})" for line, what in list(told.items())[:_TOLD])
        Callers.warn(
            f"the step of {self._model.name!r} uses {listed}: each replica does so with its own rows, where one device "
            f"would with those of the whole batch, so that the result is another one{unless}. HINT: let "
            "steps treat all rows alike; get_replica_context().all_gather(x, axis=0) has the rows of all replicas, and "
            f"all_reduce their sums.{drawn} If the first axis is no batch, as in x[0] for anchors and x[1] for "
            "positives, give a tuple of arrays, whose first axes are batches."
        )
        return listed

    def _traced(
        self, share: Share, batch: Nest, rows: int, added: frozenset[int], *, gradients: bool = False
    ) -> _Traced:
        """The step as a program of so many rows; of one in TensorFlow's form the gradients are seen if asked for."""
        names: list[Any] = []

        def step(part: Share, batch: Nest, _: TracedReplica) -> list[Any]:
            part.added_sums, part.marks_changes = added, True
            start, ends, logs = self._ends(part, batch)[:3]
            found: dict[Any, Any] = {}
            for variable, old, new in zip(self._variables, start, ends, strict=True):
                if new is not None and new is not old and variable.aggregation == "sum":
                    found[id(variable)] = new
            found.update({name: value for name, value in logs.items() if _is_number(value)})
            if part.loss is not None:
                found[_WHOLE] = part.loss
            found.update({_Loss(number): loss for number, loss in enumerate(part.added)})
            for number, values in enumerate(part.applied if gradients or not self._writes else ()):
                found.update({(number, place): value for place, value in enumerate(values)})
            names.extend(found)
            return list(found.values())

        return _Traced(traced_step(share, batch, rows, step, weighs_later=self._weighs_later), names)

    def _shared(self, outputs: dict[Any, Part]) -> Mapping[int, int]:
        """The powers by which a replica adds to variables."""
        shared: dict[int, int] = {}
        for metric in internals.metrics_of(self._model):
            parts = {id(variable): outputs[id(variable)] for variable in metric.variables if id(variable) in outputs}
            unknown, means = set[int](), False
            for name, part in parts.items():
                degree = _degree(part)
                if degree is None:
                    unknown.add(name)
                elif part.kind is not Kind.ZERO:
                    shared[name] = 1 - degree
                    means = means or degree == 0
            # A metric that counts a batch once is given one number for it.
            if unknown and (means or type(metric) is keras.metrics.Sum):
                shared.update(dict.fromkeys(unknown, 1))
                Callers.warn(
                    f"metric {metric.name!r} is updated with one number for each replica which is no sum and no mean "
                    "over its examples, such as a root or a ratio of means: their mean by the replicas' shares of the "
                    "examples is not quite what one device finds in the whole batch. HINT: update it with a value for "
                    "each example, or with what get_replica_context().all_reduce has made of sums."
                )
            elif unknown and not internals.is_keras(type(metric)):
                Callers.warn(
                    f"metric {metric.name!r} adds to its variables what is no known sum over the examples: what the "
                    "replicas add is added up. HINT: add sums over examples, and compute the rest in result()."
                )
        return shared


@dataclass
class _Traced:
    """A step's program, and what its outputs are: ids of variables, and names of logs and others."""

    program: Any
    names: list[Any]

    def gradients(self) -> Any:
        """The part of the program that makes what optimizers are given."""
        outputs = zip(self.names, Programs.opened(self.program).outvars, strict=True)
        return Programs.pruned(self.program, [output for name, output in outputs if isinstance(name, tuple)])[0]


@dataclass(frozen=True)
class Number:
    """Name of a number that a step in TensorFlow's form has updated a metric with."""

    number: int


@dataclass(frozen=True)
class _Loss:
    """Name of one of a step's additional losses, or of its whole loss."""

    number: int


_WHOLE = _Loss(-1)


def _has_empty(program: Any) -> bool:
    """True if a program makes a value without elements."""
    return any(
        any(0 in getattr(Programs.aval(var), "shape", ()) for var in eqn.outvars)
        or any(map(_has_empty, Programs.programs_in(eqn)))
        for eqn in Programs.opened(program).eqns
    )


def _written(program: Any) -> tuple[str, list[bytes]]:
    """A program with all its numbers."""
    return str(program), [np.asarray(number).tobytes() for number in Programs.constants(program)]


@contextmanager
def _as_of(strategy: Any, replicas: int) -> Generator[None]:
    """Lets this thread, and no other, see another number of replicas."""
    kind, thread = type(strategy), threading.get_ident()
    own = getattr(kind, _REPLICAS)
    seen = property(lambda other: replicas if threading.get_ident() == thread else own.fget(other))
    with mock.patch.object(kind, _REPLICAS, seen):
        yield


def _divides_by(number: int, program: Any) -> bool:
    """True if a program divides anything by a number, or multiplies with its reciprocal."""
    for eqn in Programs.opened(program).eqns:
        sought = {"div": number, "mul": 1 / number}.get(eqn.primitive.name)
        values = [atom.val for atom in eqn.invars if isinstance(atom, Literal) and not np.shape(atom.val)]
        if sought and any(abs(float(value) / sought - 1) < _NEAR for value in values):
            return True
        if any(_divides_by(number, inner) for inner in Programs.programs_in(eqn)):
            return True
    return False


def _is_number(value: Leaf) -> bool:
    """True for a log that can be looked at; others are shown as they are."""
    return hasattr(value, "dtype") or isinstance(value, (int, float))


def _adds(name: Any, part: Part) -> bool:
    """True for an additional loss that is a sum over the examples."""
    return isinstance(name, _Loss) and name != _WHOLE and _degree(part) == 1


def _summed_updates(outputs: dict[Any, Part]) -> Iterable[int]:
    """The numbers of an optimizer's updates by gradients of a sum over the examples, and not of a mean."""
    return (number for number, known in _degrees_of_updates(outputs).items() if known == {1})


def _degrees_of_updates(outputs: dict[Any, Part]) -> dict[int, set[int]]:
    """The powers of the number of rows that the gradients of each update grow by."""
    degrees: dict[int, set[int]] = {}
    for name, part in outputs.items():
        if isinstance(name, tuple):
            # Of what is not known, such as the gradients of a loop, the others tell.
            known = degrees.setdefault(name[0], set())
            known.update({part.degree} if part.kind is Kind.TOTAL else ())
    return degrees


def _degree(part: Part) -> int | None:
    """1 for what adds up over the replicas, 0 for what is a mean by their examples, and so on; None if not known."""
    return None if part.kind in (Kind.ROWS, Kind.OTHER) else part.degree
