"""Numbers of elements of datasets: those of datasets that are made of others."""

from __future__ import annotations

from collections.abc import Iterable

INFINITE, UNKNOWN = -1, -2


def repeated(count: int, times: int | None) -> int:
    """Of a dataset that is repeated; None for ever."""
    if times == 0 or count == 0:
        return 0
    if times is None or count == INFINITE:
        return INFINITE
    return UNKNOWN if count == UNKNOWN else count * times


def cut(count: int, start: int, stop: int | None, step: int = 1) -> int:
    """Of a slice."""
    if count == UNKNOWN or (count == INFINITE and stop is None):
        return count
    return len(range(start, count if stop is None else stop if count == INFINITE else min(stop, count), step))


def batched(count: int, size: int, drop_remainder: bool) -> int:
    """Of batches."""
    return count if count < 0 else count // size if drop_remainder else -(-count // size)


def windows(count: int, span: int, shift: int, drop_remainder: bool) -> int:
    """Of windows that begin `shift` elements after each other; a whole one needs `span` of them."""
    if count < 0:
        return count
    return -(-count // shift) if not drop_remainder else max(0, (count - span) // shift + 1)


def zipped(counts: Iterable[int]) -> int:
    """Of tuples."""
    known = list(counts)
    if UNKNOWN in known:
        return UNKNOWN
    return min((count for count in known if count != INFINITE), default=INFINITE)


def joined(counts: Iterable[int]) -> int:
    """Of all elements of several datasets."""
    known = list(counts)
    if INFINITE in known:
        return INFINITE
    return UNKNOWN if UNKNOWN in known else sum(known)
