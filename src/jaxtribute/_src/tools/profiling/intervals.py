"""Sets of moments, as sorted lists of spans that do not overlap."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Span]:
    """The moments that are in any of `spans`, which may come in any order and overlap."""
    merged: list[Span] = []
    for start, stop in sorted(spans):
        if stop <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def subtract(spans: Iterable[Span], without: Iterable[Span]) -> list[Span]:
    """The moments of `spans` that are in none of `without`."""
    rest: list[Span] = []
    holes = union(without)
    place = 0
    for start, stop in union(spans):
        while place < len(holes) and holes[place][1] <= start:
            place += 1
        at = place
        while at < len(holes) and holes[at][0] < stop:
            if holes[at][0] > start:
                rest.append((start, holes[at][0]))
            start = max(start, holes[at][1])
            at += 1
        if start < stop:
            rest.append((start, stop))
    return rest


def clip(spans: Iterable[Span], window: Span) -> list[Span]:
    """The moments of `spans` that are in `window`."""
    first, last = window
    return [(max(start, first), min(stop, last)) for start, stop in union(spans) if start < last and stop > first]


def total(spans: Iterable[Span]) -> float:
    """Length of `spans` together, each moment counted once."""
    return sum(stop - start for start, stop in union(spans))
