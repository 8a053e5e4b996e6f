"""Groups what differs, by where it does; and makes findings of the groups, each mistake told once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxtribute._src.addons.verify.arrangements import Arrangement
from jaxtribute._src.addons.verify.comparing import Difference
from jaxtribute._src.addons.verify.culprit import Culprit, same_mistake
from jaxtribute._src.addons.verify.verdict import Finding, Verdict

_GROUPS = 4
"""Groups of values that are looked into."""


@dataclass(slots=True, eq=False)
class Group:
    """Values that differ in the same arrangements.

    Attributes:
      where: the arrangements.
      arrangement: the one of them to look into.
      apart: what differs there.
      others: names of what differs elsewhere.
    """

    where: list[Arrangement]
    arrangement: Arrangement
    apart: list[Difference]
    others: list[str]


@dataclass(slots=True, eq=False)
class Judged:
    """A group, and what is to blame for it.

    Attributes:
      group: the group.
      culprit: the mistake.
      behind: of a culprit that is a guess the lines behind the values, as text.
    """

    group: Group
    culprit: Culprit
    behind: frozenset[str] = frozenset()

    def is_of(self, culprit: Culprit) -> bool:
        """True if another mistake is the reason: the same one, or one whose line leads to what is only guessed at."""
        return same_mistake(culprit, self.culprit) or (self.culprit.guess and str(culprit.place) in self.behind)


def grouped(wrong: Sequence[tuple[Arrangement, list[Difference]]]) -> Iterator[Group]:
    """Gives the groups of what differs, as it is in each arrangement.

    What differs in most arrangements comes first: a part of it may pass here and there, as Adam's first step does.
    """
    failing: dict[tuple[str, int], list[Arrangement]] = {}
    for arrangement, apart in wrong:
        for difference in apart:
            failing.setdefault(difference.key, []).append(arrangement)
    groups: dict[tuple[Arrangement, ...], list[tuple[str, int]]] = {}
    for key, where in failing.items():
        groups.setdefault(tuple(where), []).append(key)
    for where, keys in sorted(groups.items(), key=lambda group: -len(group[0]))[:_GROUPS]:
        # Where all replicas have as many rows, fewer things can be the reason; fewer replicas are easier to read.
        kinds = [each.kind for each in where]
        kind = "divides" if "divides" in kinds else kinds[0]
        alike = [pair for pair in wrong if pair[0] in where and pair[0].kind == kind]
        arrangement, everything = max(alike, key=lambda pair: len(pair[1]))
        apart = [difference for difference in everything if difference.key in keys]
        # What a clip hides in this arrangement only seems to be right.
        yield Group(list(where), arrangement, apart, [key[0] for key in failing if key not in keys])


def add_findings(verdict: Verdict, judged: Iterable[Judged]) -> None:
    """Adds a finding for each mistake: what is only guessed at comes last, and may be what another one leads to."""
    for one in sorted(judged, key=lambda each: each.culprit.guess):
        group, where = one.group, one.group.where
        known = next((each for each in verdict.findings if one.is_of(each.culprit)), None)
        if known is not None:
            known.differences += group.apart
            known.failing = [other for other in verdict.tried if other in known.failing or other in where]
            known.right = [other for other in verdict.tried if other not in known.failing]
            continue
        right = [other for other in verdict.tried if other not in where]
        verdict.findings.append(Finding(one.culprit, group.apart, group.arrangement, where, right))
