"""`Reduction`: one of a step's results, outside of the step, where each replica has a value of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from jaxtribute import ReduceOp
from jaxtribute._src.addons.verify.arrangements import Arrangement
from jaxtribute._src.addons.verify.blame import Suspects
from jaxtribute._src.addons.verify.comparing import Difference, compared
from jaxtribute._src.addons.verify.culprit import unreduced
from jaxtribute._src.addons.verify.holding import total_of
from jaxtribute._src.addons.verify.machine import CannotVerify, Record
from jaxtribute._src.addons.verify.relations import Kind, relate
from jaxtribute._src.addons.verify.sources import Place
from jaxtribute._src.addons.verify.stage import Outcome
from jaxtribute._src.addons.verify.verdict import Finding, Verdict


class Reduction:
    """A reduction.

    Args:
      path: where in the results the value stands.
      op: the reduction.
      axis: what is reduced within each replica.
      place: the line of the reduction.
    """

    def __init__(self, path: str, op: ReduceOp, axis: Any, place: Place) -> None:
        self._path, self._op, self._axis, self._place = path, op, axis, place
        self._name = f"strategy.reduce of the result{path}"

    def is_told(
        self,
        verdict: Verdict,
        runs: Iterable[tuple[Outcome, Outcome]],
        kept: Callable[[Arrangement], tuple[Outcome, Outcome]],
        earlier: Sequence[Finding],
    ) -> bool:
        """Adds to a verdict what was tried, and a finding; returns True if what differs is told without one.

        Args:
          verdict: is added to.
          runs: the step on one device and on replicas, in all arrangements.
          kept: runs it once more, and keeps what it computes.
          earlier: what is wrong in the step; one that is the reason gets what differs.
        """
        failing: list[tuple[Outcome, Outcome, list[Difference]]] = []
        for one, found in runs:
            value, parts, arrangement = one.outputs.get(self._path), found.outputs.get(self._path), found.arrangement
            if value is None or not isinstance(parts, tuple) or not arrangement.plain or arrangement.idle:
                continue
            try:
                alone, others = self._total([value]), self._total(parts)
            except CannotVerify:
                continue  # which the program's own call would raise, too
            verdict.tried.append(arrangement)
            apart = list(compared(self._name, alone, others, rounded=found.rounded))
            if apart:
                failing.append((one, found, apart))
        if not failing:
            return False
        one, found, apart = failing[0]
        where = [each.arrangement for _, each, _ in failing]
        suspects = self._suspects(*kept(where[0]), apart)
        reason = _reason(suspects.behind(), where, earlier)
        if reason is not None:
            reason.differences += apart
            return True
        value, parts = one.outputs[self._path], found.outputs[self._path]
        relation = relate(value, parts, where[0])
        # Parts that are none of what there is to reduce were made so within the step.
        culprit = suspects.culprit() if relation.kind in (Kind.NONE, Kind.SCALED) else None
        if culprit is None or culprit.guess or culprit.place is None:
            culprit = unreduced(self._op, relation, self._place, value, parts)
        right = [each for each in verdict.tried if each not in where]
        verdict.findings.append(Finding(culprit, apart, where[0], where, right))
        return False

    def _total(self, parts: Sequence[Any]) -> Any:
        return total_of(parts, self._op, self._axis)

    def _suspects(self, one: Outcome, found: Outcome, apart: list[Difference]) -> Suspects:
        """Causes to look at, as if the step had the reduction within it."""
        value, parts = one.outputs[self._path], found.outputs[self._path]
        alone, others = self._total([value]), self._total(parts)
        name = f"strategy.reduce {self._op.name} axis={self._axis}"
        one.tapes[0].add(Record(name, (value,), (alone,), None, self._place))
        for tape, part in zip(found.tapes, parts, strict=True):
            tape.add(Record(name, (part,), (others,), None, self._place))
        return Suspects(
            replace(one, outputs={**one.outputs, self._name: alone}),
            replace(found, outputs={**found.outputs, self._name: others}),
            apart,
        )


def _reason(lines: frozenset[str], where: Sequence[Arrangement], earlier: Sequence[Finding]) -> Finding | None:
    """The finding on a line that leads to what differs, if it is wrong wherever that differs."""
    kinds = {one.kind for one in where}
    return next(
        (each for each in earlier if str(each.culprit.place) in lines and kinds <= {one.kind for one in each.failing}),
        None,
    )
