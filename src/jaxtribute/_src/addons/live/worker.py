"""One worker's part of a run, as its records tell it."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from jaxtribute._src.addons.live.files import BUCKETS, Tail, now_file, read_now, worker_file
from jaxtribute._src.addons.live.windows import Window
from jaxtribute.typing import HostArray, Json

COLUMNS = ("start", "length", *BUCKETS, "steps", "examples")
_MOST_EVENTS = 500
_MOST_METRICS = 64
_FIGURES = 4
_MOST_BINS = 1024
_NUMBERS = (float, int)
_MOST = 1e18
_LONGEST_S = 1 << 24
_NOTHING: dict[str, Json] = {}
_NAMES = {"ps": "parameter server", "ps-worker": "worker"}
COORDINATOR = "coordinator"
"""The name of the task that schedules functions on the workers of parameter servers."""


@dataclass
class Event:
    """A moment of a run that is worth a line.

    Attributes:
      time: seconds since 1970.
      kind: `start`, `end`, `save`, `restore`, `failure`.
      rank: the worker; None for the job.
      text: what happened, in a line.
      details: a traceback, if there is one.
      seconds: how long it took, if that is known.
    """

    time: float
    kind: str
    rank: int | None
    text: str
    details: str = ""
    seconds: float | None = None


@dataclass(frozen=True)
class View:
    """Islands that train together from a moment on.

    Attributes:
      time: of the first step that they have taken, in seconds since 1970.
      number: the view's.
      islands: their ranks.
      seconds: time that this step took more than others: to agree, to do it again and to compile.
    """

    time: float
    number: int
    islands: tuple[int, ...]
    seconds: float


@dataclass
class Worker:
    """Records of one worker.

    Attributes:
      rank: its number.
      about: the program and the machine, as it said at its last start.
      starts: moments of its starts.
      ends: moments of its ends, of those that it told.
      firsts: for each start, the number of windows before it.
      count: windows that are over.
      covered: the moment up to which they tell.
      now: what it does now, if it runs or was killed.
      bins: numbers of all steps by the bin of their time.
      examples: all examples that were drawn.
      usage: memory, seconds of its cores and the position in the data, as told last.
      devices: its devices.
      events: what is worth a line.
      series: for each metric, moments, steps and values.
      saved: moments at which the training had begun a save that was then completed.
      now_problem: why the file of what it does now cannot be read; empty if it can, or is not there.
      role: of the process, one of those that files are named by.
      figures: for each task of a cluster with parameter servers that runs in it, what that counts of itself.
      figures_at: the moment at which it told them.
      queue: moments, with numbers of functions that waited for a worker then.
      views: of an island, the views that it has come into.
    """

    rank: int
    tail: Tail
    now_path: Path
    about: dict[str, Json] = field(default_factory=dict[str, Json])
    starts: list[float] = field(default_factory=list[float])
    ends: list[float] = field(default_factory=list[float])
    firsts: list[int] = field(default_factory=list[int])
    count: int = 0
    _last: int = 0
    covered: float = 0.0
    usage: dict[str, Json] = field(default_factory=dict[str, Json])
    bins: dict[int, int] = field(default_factory=dict[int, int])
    examples: int = 0
    now: dict[str, Json] | None = None
    current: Window | None = None
    saved: list[float] = field(default_factory=list[float])
    events: list[Event] = field(default_factory=list[Event])
    devices: list[str] = field(default_factory=list[str])
    series: dict[str, list[tuple[float, float, float]]] = field(
        default_factory=dict[str, list[tuple[float, float, float]]]
    )
    now_problem: str = ""
    role: str = "worker"
    figures: dict[str, dict[str, Json]] = field(default_factory=dict[str, dict[str, Json]])
    figures_at: float = 0.0
    queue: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    views: list[View] = field(default_factory=list["View"])
    _figures: deque[tuple[float, dict[str, dict[str, Json]]]] = field(
        default_factory=lambda: deque[tuple[float, dict[str, dict[str, Json]]]](maxlen=_FIGURES)
    )
    _rows: array[float] = field(default_factory=lambda: array("d"))
    _writing: dict[str, float] = field(default_factory=dict[str, float])

    @classmethod
    def at(cls, directory: Path, rank: int, role: str = "worker") -> Worker:
        """The worker of that number, or another process."""
        return cls(rank, Tail(worker_file(directory, rank, role)), now_file(directory, rank, role), role=role)

    def update(self) -> None:
        """Reads what is new."""
        for record in self.tail.new():
            try:
                self._take(record)
            except (TypeError, ValueError, KeyError, AttributeError):
                continue  # no record of ours
        self._read_now()
        told = (self.now or _NOTHING).get("window")
        try:
            self.current = _window(told) if isinstance(told, dict) else None
        except (TypeError, ValueError, KeyError, AttributeError):
            self.now = self.current = None
        if self.current is not None and self.count and self.current.start <= self._rows[-len(COLUMNS)]:
            self.current = None  # it is over, and its line is written
        elif self.current is not None and isinstance(told, dict):
            self._note_usage(told)
            self._note_figures(told, number((self.now or {}).get("t")))

    def _read_now(self) -> None:
        self.now_problem = ""
        try:
            now = read_now(self.now_path)
            # One that is just being written is read the next time.
            if now is not None or not self.now_path.exists():
                self.now = now
        except OSError as error:
            self.now = None
            self.now_problem = f"{self.now_path.name} cannot be read: {error.strerror or error}"

    def table(self) -> HostArray:
        """The windows in order, that which is not over included: a row each, with the columns `COLUMNS`."""
        rows = np.array(self._rows).reshape(-1, len(COLUMNS))
        return rows if self.current is None else np.vstack([rows, _row(self.current)])

    def steps(self) -> int:
        """Number of its last step, counted from its last start."""
        return self._last if self.current is None else self.current.last

    def last_seen(self) -> float:
        """The last moment at which it is known to have run."""
        moments = [*self.starts[-1:], *self.ends[-1:]]
        moments.append(self.covered)
        if self.now is not None:
            moments.append(number(self.now.get("t")))
        return max(moments, default=0.0)

    def _take(self, record: dict[str, Json]) -> None:
        kind = record.get("k")
        moment = number(record.get("t"))
        if kind == "w":
            self._take_window(record)
        elif kind == "start":
            if self.starts and self.role != "worker":
                self._event(
                    Event(moment, "restart", None, f"{_NAMES.get(self.role, self.role)} {self.rank} starts again")
                )
            self.starts.append(moment)
            self.firsts.append(self.count)
            self.about = record
        elif kind == "end":
            self.ends.append(moment)
        elif kind == "devices":
            self.devices = list(map(str, record["devices"]))[:1024]
        elif kind == "fail":
            trace = str(record["trace"])
            self._event(Event(moment, "failure", self.rank, trace.strip().rpartition("\n")[2], trace))
        elif kind in ("save", "restore"):
            seconds = number(record.get("s"))
            if kind == "restore":
                self._event(Event(moment, kind, self.rank, str(record["path"]), seconds=seconds))
            else:
                self._writing.setdefault(str(record["path"]), moment)
        elif kind == "view":
            ranks = tuple(sorted(int(number(rank)) for rank in record["islands"]))
            self.views.append(View(moment, int(number(record["view"])), ranks, number(record.get("s"))))
            del self.views[:-_MOST_EVENTS]
        elif kind == "write start":
            self._writing[str(record["path"])] = moment
        elif kind == "write end":
            begun = self._writing.pop(str(record["path"]), moment)
            self.saved.append(begun)
            self._event(Event(begun, "save", self.rank, str(record["path"]), seconds=moment - begun))

    def _take_window(self, record: dict[str, Json]) -> None:
        window = _window(record)
        self._rows.extend(_row(window))
        self.count += 1
        self.covered, self._last = window.start + sum(window.buckets.values()), window.last
        self.examples += window.examples
        for place, count in window.bins.items():
            self.bins[place] = self.bins.get(place, 0) + count
        self._note_usage(record)
        if self._note_figures(record, self.covered):
            self._figures.append((self.covered, self.figures))
            if COORDINATOR in self.figures:
                self.queue.append((self.covered, number(self.figures[COORDINATOR].get("waiting"))))
        for name, value in window.metrics.items():
            if name != "step" and (name in self.series or len(self.series) < _MOST_METRICS):
                self.series.setdefault(name, []).append((window.start, number(window.metrics.get("step", 0)), value))

    def earlier(self) -> tuple[float, dict[str, dict[str, Json]]]:
        """A moment some windows ago, and the figures that were told then."""
        return self._figures[0] if self._figures else (0.0, {})

    def _note_figures(self, record: dict[str, Json], moment: float) -> bool:
        """Notes the figures of tasks in a record, if there are any."""
        tasks = record.get("tasks")
        if not isinstance(tasks, dict):
            return False
        self.figures = {str(name)[:100]: figures for name, figures in tasks.items() if isinstance(figures, dict)}
        self.figures_at = moment
        return True

    def _event(self, event: Event) -> None:
        self.events.append(event)
        # Of a job that fails over and over the last ones only.
        del self.events[:-_MOST_EVENTS]

    def _note_usage(self, record: dict[str, Json]) -> None:
        self.usage = {name: record[name] for name in ("rss", "cpu", "mem", "pos") if name in record}


def number(value: Json) -> float:
    """A number that a clock or a counter may show; 0 for anything else."""
    # Values of JSON are of these very types; a boolean is none of them. Comparing takes integers of any length.
    return float(value) if type(value) in _NUMBERS and -_MOST < value < _MOST else 0.0


def _row(window: Window) -> list[float]:
    seconds = [window.buckets.get(name, 0.0) for name in BUCKETS]
    return [window.start, float(window.length), *seconds, float(window.steps), float(window.examples)]


def _window(record: dict[str, Json]) -> Window:
    length, start = int(number(record["s"])), number(record["t"])
    if not 1 <= length <= _LONGEST_S or start <= 0:
        raise ValueError(length, start)
    window = Window(start, length)
    buckets = window.buckets
    for name, seconds in record["b"].items():
        if name in BUCKETS:
            buckets[name] = max(0.0, number(seconds))
    window.steps = int(number(record.get("n")))
    window.last = int(number(record.get("st")))
    window.examples = int(number(record.get("x")))
    bins = window.bins
    for name, count in record.get("h", _NOTHING).items():
        # A damaged file may hold any number.
        place = int(name)
        bins[place if 0 <= place <= _MOST_BINS else 0 if place < 0 else _MOST_BINS] = int(number(count))
    for name, value in record.get("m", _NOTHING).items():
        if isinstance(value, float) or number(value):
            window.metrics[str(name)[:200]] = float(value)
    return window
