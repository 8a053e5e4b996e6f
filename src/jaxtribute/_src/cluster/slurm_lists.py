"""The two short forms in which Slurm writes lists: host names, and tasks per node."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Generator

from jaxtribute.errors import ClusterSpecError

_GROUP = re.compile(r"\[([^\[\]]*)\]")
_ENTRY = re.compile(r"(?:[^,\s\[\]]|\[[^\[\]]*\])+")
_LIST = re.compile(rf"{_ENTRY.pattern}(?:,{_ENTRY.pattern})*")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?", re.ASCII)


_DIGITS = 18
_MOST = 1 << 17
"""Hosts or tasks that a list may have; the largest machines have a tenth of that."""


def expand_hosts(text: str) -> list[str]:
    """The hosts of a list such as `n[01-03,7],login,rack[0-1]n[1-2]`, in its order and with its repetitions.

    A range keeps the leading zeros of its first number.

    Raises:
      ClusterSpecError: the list is malformed, or has more hosts than any machine.
    """
    if not _LIST.fullmatch(text):
        raise _malformed_hosts(text, "as a whole")
    count = sum(
        math.prod(_count_ranges(text, piece) for piece in _GROUP.split(entry)[1::2]) for entry in _ENTRY.findall(text)
    )
    if count > _MOST:
        raise _malformed_hosts(text, f"with its {count} hosts, of which {_MOST} are expected at most")
    return [host for entry in _ENTRY.findall(text) for host in _expand_entry(text, entry)]


def _expand_entry(text: str, entry: str) -> list[str]:
    # Every second piece is what stood in brackets.
    pieces = [
        _expand_ranges(text, piece) if number % 2 else [piece] for number, piece in enumerate(_GROUP.split(entry))
    ]
    return ["".join(combination) for combination in itertools.product(*pieces)]


def _expand_ranges(text: str, ranges: str) -> list[str]:
    numbers: list[str] = []
    for first, last in _ranges(text, ranges):
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def _count_ranges(text: str, ranges: str) -> int:
    return sum(int(last) - int(first) + 1 for first, last in _ranges(text, ranges))


def _ranges(text: str, ranges: str) -> Generator[tuple[str, str]]:
    for part in ranges.split(","):
        found = _RANGE.fullmatch(part)
        if found is None or max(map(len, part.split("-"))) > _DIGITS or int(found[2] or found[1]) < int(found[1]):
            raise _malformed_hosts(text, f"at {part!r}, which is no number and no range of rising numbers")
        yield found[1], found[2] or found[1]


def _malformed_hosts(text: str, where: str) -> ClusterSpecError:
    return ClusterSpecError(
        f"{text!r} is no list of Slurm's hosts {where}. HINT: expected names and ranges, such as 'n[01-03,7],login'."
    )


def expand_counts(text: str) -> list[int]:
    """The tasks of each node from a list such as `3(x2),2,1`, which is 3, 3, 2, 1.

    Raises:
      ClusterSpecError: the list is malformed.
    """
    counts: list[int] = []
    total = 0
    for part in text.split(","):
        found = _COUNT.fullmatch(part)
        if found is None:
            raise ClusterSpecError(
                f"{text!r} is no list of Slurm's tasks per node at {part!r}. HINT: expected counts and repetitions, "
                "such as '3(x2),2,1'."
            )
        too_long = max(len(found[1]), len(found[2] or "")) > _DIGITS
        tasks, more = (_MOST, 2) if too_long else (int(found[1]), int(found[2] or 1))
        total += max(tasks, 1) * more
        if total > _MOST:
            raise ClusterSpecError(f"{text!r} counts more than {_MOST} tasks. HINT: let nothing but srun set it.")
        counts += [tasks] * more
    return counts
