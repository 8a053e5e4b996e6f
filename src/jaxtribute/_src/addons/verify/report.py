"""The report of `jaxtribute verify` on a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxtribute._src.addons.verify.arrangements import Arrangement, shorts
from jaxtribute._src.addons.verify.operations import is_key
from jaxtribute._src.addons.verify.verdict import Finding, Verdict

_NAMES = 4
_NOTES = 6
_SHOWN = 3
_ESTIMATE = (
    "each replica draws numbers of its own here, where one device has one draw for the whole batch: replicas have the "
    "mean of several, with the same expectation and less variance. Right for an estimate, such as noise of the "
    "weights; for one decision for all, such as a layer that is dropped, draw with one key: leave fold_in of the "
    "replica's number out"
)


def text(verdict: Verdict) -> str:
    """The report on one step, some lines for each finding."""
    return "\n".join(_lines(verdict))


def _lines(verdict: Verdict) -> Iterator[str]:
    if verdict.findings:
        others = ""
        if verdict.asynchronous:
            others = ", which its workers of one replica each do not see"
        elif verdict.right:
            others = " for batches that replicas do not share evenly; for others as on one device"
        yield f"{verdict.name}: {len(verdict.findings)} difference(s) from one device{others}"
    elif verdict.compared and verdict.outputs:
        yield (
            f"{verdict.name}: as on one device, {verdict.outputs} variables and results "
            f"(rows on the replicas: {shorts(verdict.tried)})"
        )
    else:
        yield f"{verdict.name}: NOT VERIFIED"
    for number, finding in enumerate(verdict.findings, start=1):
        yield from _of_finding(number, finding, in_fit=verdict.in_fit)
    if verdict.findings:
        yield "   Mend what is named, and run again: it may hide others."
    yield from (f"  NOT VERIFIED: {what}" for what in _hidden(verdict))
    yield from (f"  note: {line}: {line.text}: {_ESTIMATE}" for line in verdict.estimates[:_NOTES])
    notes = list(verdict.unverified)
    reasons: dict[str, list[Arrangement]] = {}
    for arrangement, reason in verdict.refused:
        reasons.setdefault(reason, []).append(arrangement)
    if len(reasons) == 1 and not verdict.tried:
        notes += reasons
    else:
        notes += [f"{reason} (rows on the replicas: {shorts(where)})" for reason, where in reasons.items()]
    for note in notes[:_NOTES]:
        yield f"  not verified: {note}"
    if len(notes) > _NOTES:
        yield f"  not verified: {len(notes) - _NOTES} more"


def _hidden(verdict: Verdict) -> Iterator[str]:
    """Says what may hide a mistake."""
    if verdict.pending:
        names = ", ".join(verdict.pending[:_NAMES]) + (" ..." if len(verdict.pending) > _NAMES else "")
        yield (
            f"{names}: another value on each replica, which nothing reduces. A mistake if the next call is given it as "
            "its state"
        )
    if verdict.still and verdict.unread is not None:
        yield (
            f"{verdict.unread}: {verdict.unread.text}: the loss reads none of the variables that it is differentiated "
            "by: its gradient is 0, and nothing is trained. HINT: read them in the loss; what was read of them before "
            "the step, as in params = model.value, is a constant"
        )
    elif verdict.still:
        yield (
            "no step changes what is trained (a learning rate of 0, or a condition that does not hold?), so that a "
            "wrong gradient is not seen"
        )
    if verdict.blank:
        yield f"{', '.join(verdict.blank[:_NAMES])}: NaN on one device, as on replicas, so that no difference is seen"
    for branch in verdict.untaken:
        yield f"a branch that is not taken: {branch}: {branch.text}"


def _of_finding(number: int, finding: Finding, *, in_fit: bool) -> Iterator[str]:
    culprit = finding.culprit
    pattern, place = culprit.pattern, culprit.place
    yield ""
    yield f"{number}. {pattern.name}: {pattern.what}"
    if place is not None:
        yield f"   {place}: {place.text}"
    if culprit.elsewhere is not None:
        yield f"   with {culprit.elsewhere}: {culprit.elsewhere.text}"
    if culprit.others and not is_key(culprit.alone):
        yield f"   {'in its derivative' if culprit.backwards else 'here'} one device has {_value(culprit.alone)}"
        for replica, value in list(enumerate(culprit.others))[:4]:
            yield f"        replica {replica} has {_value(value)}"
    if finding.differences:
        by_name = {one.name: one for one in reversed(finding.differences)}
        names = list(dict.fromkeys(difference.name for difference in finding.differences))
        shown = [f"{name} ({_percent(by_name[name].error)})" for name in names[:_NAMES]]
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        yield f"   differs, by all mistakes together: {', '.join(shown)}{more}"
    yield f"   wrong with {_kinds(finding.failing)}" + (
        f"; right with {_kinds(finding.right)}" if finding.right else ""
    )
    yield f"   INSTEAD: {culprit.advice(in_fit=in_fit)}"


def _kinds(arrangements: Sequence[Arrangement]) -> str:
    """Arrangements in words: by kind of batch, with the replicas' rows."""
    kinds: dict[str, list[Arrangement]] = {}
    for one in arrangements:
        kinds.setdefault(one.kind, []).append(one)
    return ", ".join(f"a batch that {kind} (rows on the replicas: {shorts(alike)})" for kind, alike in kinds.items())


def _percent(error: float) -> str:
    """A difference as a part of the change: of a variable that of the step, of a result the result itself."""
    if not np.isfinite(error):
        return "all of it"
    return f"by {float(f'{100 * error:.2g}'):g} %" if error < 10 else f"{error:.1g}-fold"


def _value(value: Any) -> str:
    array = np.asarray(value)
    if array.ndim == 0:
        return f"{array.item():.6g}" if array.dtype.kind in "fiu" else str(array.item())
    first = ", ".join(f"{one:.4g}" if array.dtype.kind in "fiu" else str(one) for one in array.reshape(-1)[:_SHOWN])
    dots = ", ..." if array.size > _SHOWN else ""
    return f"[{first}{dots}] of shape {array.shape}"
