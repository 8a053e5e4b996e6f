"""Starts of a job, as the launcher tells them; without a launcher, as the workers do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxtribute._src.addons.live.files import BUCKETS, JOB, Tail
from jaxtribute._src.addons.live.worker import Event, Worker, number
from jaxtribute.typing import Json

_APART_S = 30.0
"""Workers that nobody launched together belong to one start if they start within these seconds."""
_SILENT_S = 10.0


@dataclass
class Attempt:
    """A start of the job.

    Attributes:
      start: seconds since 1970.
      end: likewise; None while it runs.
      kind: `done`, `failed`, `preempted` or `stopped`; empty while it runs, or if nobody told.
    """

    start: float
    end: float | None = None
    kind: str = ""


@dataclass
class Job:
    """Records of the launcher.

    Attributes:
      command: the program.
      started: the moment at which the launcher was started first; None without a launcher.
      over: the moment at which it ended last; None while it runs.
      code: the exit code that it ended with.
      attempts: the starts that it made.
      events: failures and restarts.
      lost: of islands, the last end of a process of each, by rank.
    """

    tail: Tail
    command: str = ""
    started: float | None = None
    over: float | None = None
    code: int | None = None
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    events: list[Event] = field(default_factory=list[Event])
    lost: dict[int, Event] = field(default_factory=dict[int, Event])

    @classmethod
    def at(cls, directory: Path) -> Job:
        """The job of a run's folder."""
        return cls(Tail(directory / JOB))

    def update(self) -> None:
        """Reads what is new."""
        for record in self.tail.new():
            kind, moment = record.get("k"), number(record.get("t"))
            if kind == "job":
                self.started = self.started or moment
                # Started once more in the same folder: what was over goes on.
                self.over = self.code = None
                self.command = str(record.get("command", ""))
            elif kind == "attempt start":
                if self.attempts:
                    self.events.append(Event(moment, "restart", None, f"start {len(self.attempts) + 1} of the job"))
                self.attempts.append(Attempt(moment))
            elif kind == "attempt end" and self.attempts:
                self._end(self.attempts[-1], moment, record)
            elif kind == "island end":
                self._end_island(moment, record)
            elif kind == "over":
                self.over = moment
                code = record.get("code")
                self.code = code if isinstance(code, int) else None

    def _end(self, attempt: Attempt, moment: float, record: dict[str, Json]) -> None:
        attempt.end, attempt.kind = moment, str(record.get("kind", ""))
        event = _ending(moment, record)
        # The end of an island that ends the job was told before.
        known = event is not None and self.lost.get(event.rank if event.rank is not None else -1)
        if event is not None and not (known and known.text == event.text):
            self.events.append(event)

    def _end_island(self, moment: float, record: dict[str, Json]) -> None:
        event = _ending(moment, record)
        if event is None or event.rank is None:
            return
        self.lost[event.rank] = event
        self.events.append(event)
        if record.get("again") is True:
            self.events.append(Event(moment, "restart", event.rank, "started again, alone"))


def _ending(moment: float, record: dict[str, Json]) -> Event | None:
    """The event of a bad end of the job or of an island; None for a good one."""
    kind, rank = record.get("kind"), record.get("rank")
    # A line of them: the rest of a long message stands in the traceback.
    words, trace = str(record.get("words") or kind).partition("\n")[0], str(record.get("traceback") or "")
    if kind == "preempted":
        return Event(moment, "preemption", rank if "again" in record else None, words)
    return Event(moment, "failure", rank if isinstance(rank, int) else None, words, trace) if kind == "failed" else None


def attempts_of(job: Job, workers: Sequence[Worker], now: float) -> list[Attempt]:
    """The starts of a run in order, each with its end if it has ended."""
    if job.attempts:
        return job.attempts
    starts: list[float] = []
    for worker in workers:
        starts += worker.starts
    found: list[Attempt] = []
    for start in sorted(starts):
        # Workers of one start begin within seconds of each other; a worker that begins again makes it another start.
        if not found or start - found[-1].start > _APART_S or _again(workers, found[-1].start, start):
            found.append(Attempt(start))
    following: list[Attempt | None] = [*found[1:], None]
    for one, after in zip(found, following, strict=False):
        until = after.start if after is not None else float("inf")
        one.end = _last_seen(workers, one.start, until) if after is not None else _ended(workers, one.start, now)
    return found


def _again(workers: Sequence[Worker], before: float, start: float) -> bool:
    """True if a worker was started both times."""
    return any(start in worker.starts and any(before <= s < start for s in worker.starts) for worker in workers)


def _last_seen(workers: Sequence[Worker], start: float, until: float) -> float:
    """The last moment before `until` at which a worker ran."""
    last = start
    for worker in workers:
        # A worker's table goes on over all its starts: the rows of later ones are not of this one.
        later = (first for first, began in zip(worker.firsts, worker.starts, strict=True) if began >= until)
        before = worker.table()[: next(later, None)]
        covered = float(before[-1, 0] + before[-1, 2 : 2 + len(BUCKETS)].sum()) if len(before) else start
        for moment in (covered, *worker.ends):
            if start <= moment < until:
                last = max(last, moment)
    return last


def _ended(workers: Sequence[Worker], start: float, now: float) -> float | None:
    """The end of the last start; None while a worker runs."""
    seen = max(map(Worker.last_seen, workers), default=start)
    # An end before the last start is that of an earlier process.
    over = all(worker.ends and worker.ends[-1] >= max(worker.starts, default=0.0) for worker in workers)
    return seen if over or now - seen > _SILENT_S else None
