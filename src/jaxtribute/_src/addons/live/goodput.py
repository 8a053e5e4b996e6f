"""The parts of a run's time, for each worker: they add up to all of it.

The devices of a worker that waits for another one in a step look as busy as those that compute. But in a synchronous
step all have the same to compute, so the worker whose devices are busy for the shortest time computes all of that time,
and the others wait for it in the rest of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from jaxtribute._src.addons.live.attempts import Attempt
from jaxtribute._src.addons.live.files import BUCKETS
from jaxtribute._src.addons.live.worker import COLUMNS, Worker
from jaxtribute.typing import HostArray

_STEP = BUCKETS.index("step")
_COLLECTIVE = BUCKETS.index("collective")
_LOST = BUCKETS.index("lost")
_STEPS = COLUMNS.index("steps")
_RECOVERY = BUCKETS.index("recovery")
_MAY_BE_LOST = list(map(BUCKETS.index, ("step", "input", "collective", "compile", "other")))
_OF_A_STEP = list(map(BUCKETS.index, ("step", "collective", "compile")))
_PARTS = slice(2, 2 + len(BUCKETS))
_SILENT_S = 3.0
_UNHEARD_S = 0.6
"""Seconds between two records of what a worker does now, which a kill loses."""
_LOOKS_PER_S = 5
_WINDOWS_PER_GROUP = 8
_CLEAR = 0.5
"""The share of a window by which a worker must be busier than another to wait for it beyond doubt."""
_ROUNDING = 1e-6
_LEAST = 0.05
_MOST_BINS = 4_000_000
"""Windows of all workers that are compared."""
_SKEW_S = 3600.0

Bar = dict[str, float]


@dataclass
class Goodput:
    """The parts of the time of a run.

    Attributes:
      workers: for each worker by rank, seconds of each part.
      held: for each worker that others waited for, the seconds for which it held the job up, by what it did.
    """

    workers: dict[int, Bar] = field(default_factory=dict[int, Bar])
    held: dict[int, Bar] = field(default_factory=dict[int, Bar])

    def job(self) -> Bar:
        """Mean of the workers' parts."""
        count = max(len(self.workers), 1)
        mean: Bar = {}
        for name in BUCKETS:
            mean[name] = sum(bar.get(name, 0.0) for bar in self.workers.values()) / count
        return mean


def goodput(
    workers: Sequence[Worker], attempts: Sequence[Attempt], start: float, end: float, *, together: bool = True
) -> Goodput:
    """Finds out where the time went.

    Args:
      workers: of the run.
      attempts: starts of the job.
      start: beginning of the run, in seconds since 1970.
      end: its end, or now.
      together: whether the workers start and end together; those of parameter servers do not, and islands neither.
    """
    found = Goodput({worker.rank: dict.fromkeys(BUCKETS, 0.0) for worker in workers})
    last = start
    for number, attempt in enumerate(attempts):
        ended = min(end if attempt.end is None else attempt.end, end)
        pause = "other" if number == 0 else "recovery"
        for bar in found.workers.values():
            bar[pause] += max(0.0, attempt.start - last)
        if not together:
            _add_apart(found, workers, attempt, ended)
            last = ended
            continue
        again = number + 1 < len(attempts) or attempt.kind == "failed"
        _add_attempt(found, workers, attempt, ended, number, again=again)
        last = ended
    for bar in found.workers.values():
        bar["other"] += max(0.0, end - last)
    return found


def _add_attempt(
    found: Goodput, workers: Sequence[Worker], attempt: Attempt, ended: float, number: int, *, again: bool
) -> None:
    """Adds the parts of one start of the job to those of its workers."""
    tables = [_rows_of(worker, attempt.start, ended) for worker in workers]
    present = {worker.rank: table for worker, table in zip(workers, tables, strict=True) if len(table)}
    # Before anything is summed: it moves seconds of a step to the waits, in the tables themselves.
    if len(present) > 1:
        _separate_waits(found, present, ended)
    saved = [moment for moment in workers[0].saved if attempt.start <= moment <= ended] if workers else []
    pause = "other" if number == 0 else "recovery"
    for worker, table in zip(workers, tables, strict=True):
        # Who asks to be started again has saved; nothing follows that save.
        redone = again and not (attempt.kind == "preempted" and saved)
        lost = redone and len(table) > 0 and _move_lost(table, max(saved, default=None))
        bar = found.workers[worker.rank]
        missing = max(0.0, ended - attempt.start - _add_told(bar, table))
        before = max(0.0, float(table[0, 0]) - attempt.start) if len(table) else missing
        bar[pause] += min(missing, before)
        rest = max(0.0, missing - before)
        if lost and not any(attempt.start <= moment <= ended + _UNHEARD_S for moment in worker.ends):
            # It was killed, and went on until then as it had told before.
            bar["lost"] += min(rest, _UNHEARD_S)
            rest -= min(rest, _UNHEARD_S)
        # Until the launcher has noticed, and has ended the others.
        bar["recovery" if again else pause] += rest


def _add_apart(found: Goodput, workers: Sequence[Worker], attempt: Attempt, ended: float) -> None:
    """Adds the parts of one start of the job to those of workers that do not wait for each other."""
    for worker in workers:
        table = worker.table()
        table = table[(table[:, 0] + table[:, 1] > attempt.start) & (table[:, 0] < ended)]
        for view in worker.views:
            _move_recovery(table, view.time - view.seconds, view.time)
        bar = found.workers[worker.rank]
        told = _add_told(bar, table)
        # Before its first start the process was being made; the gaps after that are those between two processes.
        first = max(float(table[0, 0]), attempt.start) if len(table) else ended
        missing = max(0.0, ended - attempt.start - told)
        # Nor is one made that ended well before the others.
        over = bool(worker.ends) and worker.ends[-1] >= max(worker.starts, default=0.0)
        idle = first - attempt.start + (max(0.0, ended - worker.ends[-1]) if over else 0.0)
        bar["other"] += min(missing, idle)
        bar["recovery"] += max(0.0, missing - idle)


def _move_recovery(table: HostArray, since: float, until: float) -> None:
    """Makes what an island did in a step from a moment to another its recovery from a change of islands."""
    parts, left = table[:, _PARTS], until - since
    for row in np.flatnonzero((table[:, 0] < until) & (table[:, 0] + table[:, 1] > since)):
        there = float(parts[row, _OF_A_STEP].sum())
        moved = min(there, left)
        if moved > 0:
            parts[row, _OF_A_STEP] *= 1 - moved / there
            parts[row, _RECOVERY] += moved
            left -= moved


def _add_told(bar: Bar, table: HostArray) -> float:
    """Adds the parts of a worker's windows to its bar; returns the seconds of them all."""
    parts = table[:, _PARTS]
    for place, name in enumerate(BUCKETS):
        bar[name] += float(parts[:, place].sum())
    return float(parts.sum())


def _rows_of(worker: Worker, start: float, end: float) -> HostArray:
    """The windows of a worker that belong to the start of the job between two moments."""
    for place in reversed(range(len(worker.starts))):
        if start - 1.0 <= worker.starts[place] <= end:
            last = place + 1 == len(worker.starts)
            table = worker.table()[worker.firsts[place] : None if last else worker.firsts[place + 1]]
            # A clock that was set may have put windows out of order, a damaged file anywhere.
            table = table[(table[:, 0] > start - _SKEW_S) & (table[:, 0] < end + _SKEW_S)]
            return table[np.argsort(table[:, 0], kind="stable")]
    return np.zeros((0, len(COLUMNS)))


def _move_lost(table: HostArray, saved: float | None) -> bool:
    """Makes all time after the last save lost, or after the start of the first step, but for the saves themselves.

    Returns False if it has not come to a step.
    """
    parts = table[:, _PARTS]
    covered = parts.sum(axis=1)
    ends = table[:, 0] + table[:, 1]
    # The last window may not be full: it ends where what is told of it ends.
    ends[-1] = table[-1, 0] + covered[-1]
    stepped = np.flatnonzero(table[:, _STEPS])
    if saved is None and not len(stepped):
        return False
    # A window within which the save was is lost in part.
    since = float(table[stepped[0], 0]) if saved is None else saved
    share = np.clip((ends - since) / np.maximum(covered, 1e-9), 0.0, 1.0)
    parts[:, _LOST] += share * parts[:, _MAY_BE_LOST].sum(axis=1)
    parts[:, _MAY_BE_LOST] *= (1 - share)[:, None]
    return True


def _separate_waits(found: Goodput, present: Mapping[int, HostArray], ended: float) -> None:
    """Makes a wait of that part of each worker's steps for which another one was not computing.

    Args:
      found: where the workers that others waited for are noted.
      present: windows of the workers that take part, by rank.
      ended: end of this start of the job.
    """
    ranks, tables = list(present), list(present.values())
    # In windows as long as the longest, which are made of whole shorter ones.
    everything = np.concatenate(tables)
    length = float(everything[:, 1].max())
    first, last = float(everything[:, 0].min()) // length, float(everything[:, 0].max()) // length
    bins = int(last - first) + 1
    # A clock that is far off, or a damaged file: rather no waits told than no memory left.
    if bins * len(tables) > _MOST_BINS:
        return
    parts = np.zeros((len(tables), bins, len(BUCKETS)))
    # A worker takes part from the moment that it starts until it ends, or the job does; if it tells nothing meanwhile,
    # it does nothing.
    here = np.zeros((len(tables), bins), bool)
    for place, table in enumerate(tables):
        index = (table[:, 0] // length - first).astype(int)
        np.add.at(parts[place], index, table[:, _PARTS])
        silent = ended - float(table[-1, 0] + table[-1, 1]) > _SILENT_S
        here[place, index[0] : bins if silent else index[-1] + 1] = True
    whole = here.all(axis=0)
    whole[-1:] = False  # not all have told of the last one
    barriers = parts[:, :, _COLLECTIVE]
    sharp, more = _waits((parts[:, :, _STEP] + barriers) * whole, whole, length)
    _blame(found, ranks, parts, sharp)
    edges = np.arange(0, bins, _WINDOWS_PER_GROUP)
    others = parts * ~sharp.any(axis=0)[:, None]
    _blame(found, ranks, np.add.reduceat(others, edges, axis=1), more)
    waits = sharp + _spread(more, np.maximum((parts[:, :, _STEP] + barriers) * whole - sharp, 0.0))
    for place, table in enumerate(tables):
        index = (table[:, 0] // length - first).astype(int)
        busy = np.maximum(parts[place, :, _STEP], 1e-9)
        share = np.clip((waits[place] - barriers[place]) / busy, 0.0, 1.0)[index]
        own = table[:, _PARTS]
        own[:, _COLLECTIVE] += share * own[:, _STEP]
        own[:, _STEP] *= 1 - share


def _waits(busy: HostArray, whole: HostArray, length: float) -> tuple[HostArray, HostArray]:
    """Seconds for which each worker waited for another one, in a step or at a barrier.

    In single windows only waits count that are beyond the doubt of so few looks; they have the shape `(workers, bins)`.
    What groups of windows show beside them has the shape `(workers, groups)`.
    """
    # Devices wait inside their own step, and look busy then: the worker that was busy for the shortest time kept them
    # waiting.
    sharp = busy - busy.min(axis=0)
    sharp[sharp < _CLEAR * length] = 0.0
    edges = np.arange(0, busy.shape[1], _WINDOWS_PER_GROUP)
    grouped = np.add.reduceat(busy, edges, axis=1)
    seconds = np.maximum(np.add.reduceat(whole, edges) * length, length)
    difference = grouped - grouped.min(axis=0)
    share = np.clip(grouped / seconds, 0.0, 1.0)
    # Looks are a sample, and differ by chance between workers that are alike: what lies within 2.5 standard deviations
    # is no wait.
    doubt = _LEAST + 2.5 * np.sqrt(share * (1 - share) / (_LOOKS_PER_S * seconds))
    difference[difference < doubt * seconds] = 0.0
    return sharp, np.maximum(difference - np.add.reduceat(sharp, edges, axis=1), 0.0)


def _spread(more: HostArray, rest: HostArray) -> HostArray:
    """Waits of groups of windows, over the windows of each as these have seconds that may be waits."""
    bins = rest.shape[1]
    sums = np.add.reduceat(rest, np.arange(0, bins, _WINDOWS_PER_GROUP), axis=1)
    share = np.minimum(more / np.maximum(sums, 1e-9), 1.0)
    return rest * share[:, np.arange(bins) // _WINDOWS_PER_GROUP]


def _blame(found: Goodput, ranks: Sequence[int], parts: HostArray, waits: HostArray) -> None:
    """Adds the time for which workers were waited for to what they did in it, and those who waited did not.

    Args:
      found: where it is added.
      ranks: of the workers.
      parts: seconds of each part, of shape `(workers, times, parts)`.
      waits: seconds for which each worker waited, of shape `(workers, times)`.
    """
    most = waits.max(axis=0)
    slowest = (parts[:, :, _STEP] + parts[:, :, _COLLECTIVE]).argmin(axis=0)
    waiting = waits.argmax(axis=0)
    for time in np.flatnonzero(most > _ROUNDING):
        worker = slowest[time]
        # Both have the next batch made, and run the Python of a step; the cause is what one has more of.
        doing = np.maximum(parts[worker, time] - parts[waiting[time], time], 0.0)
        doing[[_STEP, _COLLECTIVE]] = 0.0
        held = found.held.setdefault(ranks[worker], {})
        total = float(doing.sum())
        if total <= 0:
            held["silent"] = held.get("silent", 0.0) + float(most[time])
            continue
        for part in np.flatnonzero(doing):
            cause = BUCKETS[part]
            held[cause] = held.get(cause, 0.0) + float(most[time] * doing[part] / total)
