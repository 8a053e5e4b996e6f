"""The report of `jaxtribute verify` on a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jaxtribute._src.addons.verify.arrangements import Arrangement, shorts
from jaxtribute._src.addons.verify.comparing import Difference
from jaxtribute._src.addons.verify.doubts import NOTHING, doubts
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
        elif not verdict.wrong:
            others = " for batches that replicas do not share evenly; for others as on one device"
        yield f"{verdict.name}: {len(verdict.findings)} difference(s) from one device{others}"
    elif verdict.compared and not verdict.results:
        yield f"{verdict.name}: nothing to compare: it writes no variable, and returns nothing"
    elif verdict.compared:
        whole = "" if verdict.right else "NOT VERIFIED in all; what was compared is "
        yield (
            f"{verdict.name}: {whole}as on one device, {verdict.outputs} variables and results "
            f"(rows on the replicas: {shorts(verdict.tried)})"
        )
    elif verdict.tried and not verdict.varying:
        yield (
            f"{verdict.name}: NOT VERIFIED: its results are values of each replica; what a strategy.reduce makes of "
            "them is verified there"
        )
    else:
        yield f"{verdict.name}: NOT VERIFIED"
    for number, finding in enumerate(verdict.findings, start=1):
        yield from _of_finding(number, finding, in_fit=verdict.in_fit)
    if verdict.findings:
        yield "   Mend what is named, and run again: it may hide others."
    yield from (f"  NOT VERIFIED: {what}" for _, what in doubts(verdict) if what != NOTHING)
    yield from (f"  note: {line}: {line.text}: {_ESTIMATE}" for line in verdict.estimates[:_NOTES])
    notes = verdict.noted
    for note in notes[:_NOTES]:
        yield f"  not verified: {note}"
    if len(notes) > _NOTES:
        yield f"  not verified: {len(notes) - _NOTES} more"


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
        apart = _first_of_each(finding.differences)
        often = Counter(one.name for one in apart)
        shown = [_named(one, shaped=often[one.name] > 1) for one in apart[:_NAMES]]
        more = f" and {len(apart) - _NAMES} more" if len(apart) > _NAMES else ""
        yield f"   differs, by all mistakes together: {', '.join(shown)}{more}"
    yield f"   wrong with {_kinds(finding.failing)}" + (
        f"; right with {_kinds(finding.right)}" if finding.right else ""
    )
    yield f"   INSTEAD: {culprit.advice(in_fit=in_fit)}"


def _first_of_each(differences: Sequence[Difference]) -> list[Difference]:
    """The first difference of each variable and result."""
    first: dict[tuple[str, int], Difference] = {}
    for one in differences:
        first.setdefault(one.key, one)
    return list(first.values())


def _named(one: Difference, *, shaped: bool) -> str:
    """A difference by its name, and by its shape if others have the name too, as variables without names do."""
    shape = f" of shape {np.shape(one.alone)}" if shaped else ""
    return f"{one.name}{shape} ({_percent(one.error)})"


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
