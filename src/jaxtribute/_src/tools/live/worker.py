"""One worker's part of a run, as its records tell it."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from jaxtribute._src.tools.live.files import BUCKETS, Tail, now_file, read_now, worker_file
from jaxtribute._src.tools.live.windows import Window
from jaxtribute._src.types import HostArray, Json

COLUMNS = ("start", "length", *BUCKETS, "steps", "examples")
_MOST_EVENTS = 500
_MOST_METRICS = 64


@dataclass
class Event:
    """A moment of a run that is worth a line.

    Attributes:
      time: seconds since 1970.
      kind: `start`, `end`, `save`, `restore`, `failure`.
      rank: the worker; None for the job.
      text: what happened, in a line.
      details: a traceback, where there is one.
      seconds: how long it took, where that is known.
    """

    time: float
    kind: str
    rank: int | None
    text: str
    details: str = ""
    seconds: float | None = None


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
    _rows: array[float] = field(default_factory=lambda: array("d"))
    _writing: dict[str, float] = field(default_factory=dict[str, float])

    @classmethod
    def at(cls, directory: Path, rank: int) -> Worker:
        """The worker of that number."""
        return cls(rank, Tail(worker_file(directory, rank)), now_file(directory, rank))

    def update(self) -> None:
        """Reads what is new."""
        for record in self.tail.new():
            try:
                self._take(record)
            except (TypeError, ValueError, KeyError, AttributeError):
                continue  # no record of ours
        self.now = read_now(self.now_path)
        told = (self.now or {}).get("window")
        try:
            self.current = _window(told) if isinstance(told, dict) else None
        except (TypeError, ValueError, KeyError, AttributeError):
            self.now = self.current = None
        if self.current is not None and isinstance(told, dict):
            self._note_usage(told)

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
            self.starts.append(moment)
            self.firsts.append(self.count)
            self.about = record
        elif kind == "end":
            self.ends.append(moment)
        elif kind == "devices":
            self.devices = [str(one) for one in record["devices"]][:1024]
        elif kind == "fail":
            trace = str(record["trace"])
            self._event(Event(moment, "failure", self.rank, trace.strip().rpartition("\n")[2], trace))
        elif kind in ("save", "restore"):
            seconds = number(record.get("s"))
            if kind == "restore":
                self._event(Event(moment, kind, self.rank, str(record["path"]), seconds=seconds))
            else:
                self._writing.setdefault(str(record["path"]), moment)
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
        for name, value in window.metrics.items():
            if name != "step" and (name in self.series or len(self.series) < _MOST_METRICS):
                self.series.setdefault(name, []).append((window.start, window.metrics.get("step", 0), value))

    def _event(self, event: Event) -> None:
        self.events.append(event)
        del self.events[:-_MOST_EVENTS]

    def _note_usage(self, record: dict[str, Json]) -> None:
        self.usage = {name: record[name] for name in ("rss", "cpu", "mem", "pos") if name in record}


def number(value: Json) -> float:
    """A finite number; 0 for anything else."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good else 0.0


def _row(window: Window) -> list[float]:
    seconds = [window.buckets.get(name, 0.0) for name in BUCKETS]
    return [window.start, float(window.length), *seconds, float(window.steps), float(window.examples)]


def _window(record: dict[str, Json]) -> Window:
    length = int(record["s"])
    if length < 1:
        raise ValueError(length)
    window = Window(float(record["t"]), length)
    for name, seconds in dict(record["b"]).items():
        if name in BUCKETS:
            window.buckets[name] = max(0.0, number(seconds))
    window.steps = int(number(record.get("n")))
    window.last = int(number(record.get("st")))
    window.examples = int(number(record.get("x")))
    for name, count in dict(record.get("h", {})).items():
        window.bins[min(max(int(name), 0), 1024)] = int(count)
    for name, value in dict(record.get("m", {})).items():
        if isinstance(value, (int, float)):
            window.metrics[str(name)[:200]] = float(value)
    return window
