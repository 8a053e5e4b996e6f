"""State of a run as plain data: what the terminal view and the page show."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np

from jaxtribute._src.addons.live.attempts import Attempt, Job, attempts_of
from jaxtribute._src.addons.live.doing import doing, note_absent, note_waits
from jaxtribute._src.addons.live.files import BUCKETS, LABELS, PLAN, read_json
from jaxtribute._src.addons.live.goodput import Goodput, goodput
from jaxtribute._src.addons.live.tasks import parameter_servers
from jaxtribute._src.addons.live.views import islands_of, view_events
from jaxtribute._src.addons.live.windows import quantile, seconds_text
from jaxtribute._src.addons.live.worker import COLUMNS, Event, Worker, number
from jaxtribute.errors import ArgumentError
from jaxtribute.typing import HostArray, Json

_FILE = re.compile(r"(worker|ps-worker|ps|mirror)-(\d{5,9})\.jsonl")
_POINTS = 240
_EVENTS = 100
TROUBLE = frozenset({"failure", "preemption", "restart", "view"})
"""Kinds of events that are shown before others, such as saves, which are many."""
_RECENT_S = 15.0
_LATE_S = 30.0
"""Seconds between the moments at which a worker and the launcher tell of one failure."""
_NOTABLE = 0.02
_STEPS, _EXAMPLES = COLUMNS.index("steps"), COLUMNS.index("examples")


class Run:
    """A run that goes on or is over, read from its folder.

    Args:
      directory: the folder that `--run`, `JAXTRIBUTE_RUN` or `jd.config.record_run` named.

    Raises:
      ArgumentError: there is no such folder, it holds no run, or it cannot be read, which `state` may find later.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._job = Job.at(directory)
        self._plan_problem = ""
        self._processes: dict[tuple[str, int], Worker] = {}
        self._read()
        problems = self._problems()
        # One file that cannot be read is a notice; only if none can be there is no run to show.
        read = self._job.started is not None or any(one.starts or one.count for one in self._processes.values())
        if problems and not read:
            raise ArgumentError(
                f"the run in {str(directory)!r} cannot be read: {problems[0]}. HINT: ask who records it to let this "
                "user read the folder and its files."
            )
        if not self._processes and self._job.started is None:
            raise ArgumentError(
                f"{str(directory)!r} holds no run. HINT: start one with `jaxtribute launch --run {directory} ...`."
            )

    def _problems(self) -> list[str]:
        """Files that cannot be read, and why."""
        problems = [self._job.tail.problem, self._plan_problem]
        for process in self._processes.values():
            problems += [process.tail.problem, process.now_problem]
        return list(filter(None, problems))

    def _read(self) -> None:
        self._job.update()
        try:
            paths = list(self.directory.iterdir())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ArgumentError(
                f"there is no folder {str(self.directory)!r}. HINT: give the one that `jaxtribute launch --run` "
                "records to; a run needs it while it is shown."
            ) from error
        except OSError as error:
            raise ArgumentError(
                f"the folder {str(self.directory)!r} cannot be read: {error.strerror}. HINT: this user needs the right "
                "to read it."
            ) from error
        for path in paths:
            match = _FILE.fullmatch(path.name)
            if match and (match[1], int(match[2])) not in self._processes:
                role, rank = match[1], int(match[2])
                self._processes[role, rank] = Worker.at(self.directory, rank, role)
        for process in self._processes.values():
            process.update()

    def _of(self, role: str) -> list[Worker]:
        """Processes with a role, in order."""
        return [self._processes[key] for key in sorted(self._processes) if key[0] == role]

    def state(self, now: float | None = None) -> dict[str, Json]:
        """Reads what is new, and describes the run as values that JSON can hold.

        Args:
          now: seconds since 1970, for tests.
        """
        self._read()
        now = time.time() if now is None else now
        programs = self._of("worker")
        # Workers of parameter servers start and end as they like; the job is that of their coordinator.
        workers = self._of("ps-worker") or programs
        attempts = attempts_of(self._job, programs or workers, now)
        start = min(filter(None, (self._job.started, attempts[0].start if attempts else now)), default=now)
        end = self._ended(attempts, programs or workers, now)
        served = workers is not programs
        # A launch of islands is one attempt, however often one of them is started again.
        began = attempts[-1].start if attempts else 0.0
        islands = islands_of(workers, began)
        together = not served and not any(worker.views for worker in workers)
        parts = goodput(workers, attempts, start, now if end is None else end, together=together)
        bar = parts.job()
        attempt = attempts[-1] if attempts else None
        states = {one.rank: doing(one, attempt, now, self._job.lost.get(one.rank)) for one in workers}
        servers = parameter_servers(self._processes, attempt, now)
        note_waits(workers if together else (), states)
        note_absent(states, ((servers or {}).get("coordinator") or {}).get("absent", ()))
        tables = {one.rank: one.table() for one in workers}
        lead = max(workers, key=lambda one: one.examples, default=None)
        return {
            "name": self.directory.resolve().name,
            "command": self._job.command or _program(programs or workers),
            "now": now,
            "started": start,
            "wall": (now if end is None else end) - start,
            "status": self._status(attempts, end),
            "code": self._job.code,
            "starts": len(attempts),
            "goodput": bar,
            "labels": LABELS | {"collective": "waiting for servers"} if served else LABELS,
            "parts": list(BUCKETS),
            "step": _step_times(workers) | {"predicted": self._predicted()},
            "rates": {} if lead is None else _rates(tables[lead.rank], now if end is None else None),
            "steps": max(map(Worker.steps, workers), default=0),
            "speed": [] if lead is None else _speed(tables[lead.rank], over=end is not None),
            "held": _held(parts),
            "notices": [*self._problems(), *_newer(self._processes.values()), *_notices(workers, states, parts, bar)],
            "metrics": _metrics([*programs, *workers] if served else programs),
            "parameter_servers": servers,
            "islands": islands,
            "workers": [_worker(one, states[one.rank], parts, tables[one.rank]) for one in workers],
            "events": self._events(programs or workers, attempts, began),
        }

    def _ended(self, attempts: Sequence[Attempt], workers: Sequence[Worker], now: float) -> float | None:
        """The end of the run; None while it goes on."""
        if self._job.started is not None:
            if self._job.over is not None:
                return self._job.over
            # A launcher that was killed writes no end. An hour without a sign of anybody counts as one: a long
            # compilation gives none either.
            seen = max(map(Worker.last_seen, workers), default=self._job.started)
            return None if now - max(seen, attempts[-1].start if attempts else 0.0) < 3600.0 else seen
        return attempts[-1].end if attempts else None

    def _status(self, attempts: Sequence[Attempt], end: float | None) -> str:
        if end is None:
            return "runs" if attempts and attempts[-1].end is None else "starts"
        if self._job.over is not None:
            return "done" if self._job.code == 0 else attempts[-1].kind or "stopped" if attempts else "stopped"
        return "failed" if any(one.kind == "failure" for one in self._all_events()) else "ended"

    def _all_events(self) -> list[Event]:
        events = list(self._job.events)
        for process in self._processes.values():
            events += process.events
        return events

    def _events(self, workers: Sequence[Worker], attempts: Sequence[Attempt], began: float) -> list[dict[str, Json]]:
        events = list(self._job.events)
        for worker in workers:
            for one in worker.events:
                # What is no failure, such as a save, all of them record: one line of it is enough.
                notable = one.kind == "failure" or worker is workers[0]
                if not notable or self._told(one):
                    continue
                start = _failed_start(one, attempts) if one.kind == "failure" and not self._job.lost else None
                # What has made all workers of a start fail is one failure, whose words are the launcher's.
                cause = next((known for known in events if start and known.time == start.end), None)
                if cause is None:
                    events.append(one)
                elif not cause.details:
                    events[events.index(cause)] = replace(cause, details=one.details)
        for process in self._processes.values():
            if process.role != "worker":
                events += process.events
        events += view_events(workers, began)
        events.sort(key=lambda one: (one.kind in TROUBLE, one.time))
        found: list[dict[str, Json]] = []
        for one in sorted(events[-_EVENTS:], key=lambda one: one.time):
            told = {"time": one.time, "kind": one.kind, "rank": one.rank, "text": one.text[:2000]}
            found.append(told | {"details": one.details, "seconds": one.seconds})
        return found

    def _told(self, event: Event) -> bool:
        """True if the launcher has told of a worker's failure too."""
        for one in self._job.events:
            # The launcher sees the end of a process some time after the worker has written down its error.
            if one.kind == event.kind and one.rank == event.rank and abs(one.time - event.time) < _LATE_S:
                return True
        return False

    def _predicted(self) -> float | None:
        """Seconds of a step as `jaxtribute plan --json` predicted them, if its answer lies in the folder."""
        plan, self._plan_problem = None, ""
        try:
            plan = read_json(self.directory / PLAN)
        except OSError as error:
            self._plan_problem = f"{PLAN} cannot be read: {error.strerror or error}"
        # The file may be a user's own, so every part of it is looked at before it is used.
        curve = (plan or {}).get("curve")
        devices = sum(max(len(one.devices), 1) for one in self._of("worker"))
        for one in curve if isinstance(curve, list) else ():
            if isinstance(one, dict) and one.get("devices") == devices:
                return number(one.get("compute")) + number(one.get("collectives")) or None
        return None


def _failed_start(event: Event, attempts: Sequence[Attempt]) -> Attempt | None:
    """The start of the job that a worker's failure belongs to, if the launcher says that it has failed."""
    following: list[Attempt | None] = [*attempts[1:], None]
    for attempt, after in zip(attempts, following, strict=True):
        # The others may write down their errors while the launcher ends them.
        until = (attempt.end or 0.0) + _LATE_S if after is None else after.start
        if attempt.kind == "failed" and attempt.start <= event.time < until:
            return attempt
    return None


def _program(workers: Sequence[Worker]) -> str:
    """The program as the first worker has told it."""
    return next((str(one.about.get("program", "")) for one in workers), "")


def _step_times(workers: Sequence[Worker]) -> dict[str, Json]:
    """Quantiles of the time from step to step; in a synchronous job all workers have the same steps."""
    bins: dict[int, int] = {}
    for worker in workers:
        for place, count in worker.bins.items():
            bins[place] = bins.get(place, 0) + count
    return {"p50": quantile(bins, 0.5), "p99": quantile(bins, 0.99)}


def _rates(table: HostArray, now: float | None) -> dict[str, Json]:
    """Steps and examples per second: over the time from the first step on, and lately; None for a run that is over."""
    # From the first step on: starting and compiling before it are no part of the speed.
    rows = table[table[:, _STEPS].cumsum() > 0] if len(table) else table
    if not len(rows):
        return {}
    # What is over does nothing now.
    recent = rows[:0] if now is None else rows[rows[:, 0] >= now - max(_RECENT_S, 3 * float(rows[-1, 1]))]
    found: dict[str, Json] = {}
    for name, part in (("", rows), ("_now", recent)):
        seconds = float(part[:, 2 : 2 + len(BUCKETS)].sum())
        found[f"steps{name}"] = float(part[:, _STEPS].sum()) / seconds if seconds else 0.0
        found[f"examples{name}"] = float(part[:, _EXAMPLES].sum()) / seconds if seconds else 0.0
    return found


def _speed(table: HostArray, *, over: bool) -> list[list[float]]:
    """Moments, with steps and examples per second around them; of a run that is over, of its steps alone."""
    covered = table[:, 2 : 2 + len(BUCKETS)].sum(axis=1)
    if len(table) and covered[-1] < 0.5 * table[-1, 1]:
        table = table[:-1]  # it has hardly begun
    stepped = np.flatnonzero(table[:, _STEPS])
    if over and len(stepped):
        table = table[stepped[0] : stepped[-1] + 1]
    if len(table) < 2:
        return []
    # Neighbouring windows become one point, so that a long run's curve is no larger than a short one's.
    group = np.arange(len(table)) * min(_POINTS, len(table)) // len(table)
    edges = np.flatnonzero(np.diff(group, prepend=-1))
    seconds = np.maximum(np.add.reduceat(table[:, 2 : 2 + len(BUCKETS)].sum(axis=1), edges), 1e-3)
    steps = np.add.reduceat(table[:, _STEPS], edges) / seconds
    examples = np.add.reduceat(table[:, _EXAMPLES], edges) / seconds
    return np.round(np.stack([table[edges, 0], steps, examples], axis=1), 3).tolist()


def _metrics(workers: Sequence[Worker]) -> dict[str, list[list[float]]]:
    """For each metric, moments, steps and values, of which some stand for all."""
    found: dict[str, list[list[float]]] = {}
    for worker in workers:
        for name, points in worker.series.items():
            if name not in found:
                stride = max(1, -(-len(points) // _POINTS))
                # Counted from the end, so that the last value is always among those shown.
                shown = points[::-stride][::-1]
                # JSON knows no other numbers than finite ones.
                found[name] = [[t, step, value] for t, step, value in shown if np.isfinite(value)]
    return found


def _held(parts: Goodput) -> list[dict[str, Json]]:
    """Workers that others waited for, the worst first."""
    found: list[dict[str, Json]] = []
    for rank, causes in parts.held.items():
        cause = max(causes, key=lambda name: causes[name])
        found.append({"rank": rank, "seconds": sum(causes.values()), "cause": cause, "causes": causes})
    return sorted(found, key=lambda one: -one["seconds"])


def _newer(processes: Iterable[Worker]) -> list[str]:
    """A line if the records are of a later version, which may tell more than this one understands."""
    own = version("jaxtribute")
    newer: set[str] = set()
    for process in processes:
        # The record may hold anything in that place, and a text of any length.
        told = str(process.about.get("jaxtribute", ""))[:50]
        if _numbers(told) > _numbers(own):
            newer.add(told)
    if not newer:
        return []
    return [
        f"jaxtribute {max(newer, key=_numbers)} has written this run, and {own} shows it: some of it may be missing"
    ]


def _numbers(name: str) -> list[int]:
    """The numbers that a version begins with."""
    found = re.match(r"\d{1,9}(\.\d{1,9})*", name, re.ASCII)
    return list(map(int, found[0].split("."))) if found else []


_CAUSES = {
    "input": "its input",
    "other": "its own computing in Python",
    "save": "its saves",
    "compile": "its compiling",
    "recovery": "its recovery",
    "collective": "a barrier",
    "silent": "a reason that it has not told: it is stopped, or its machine is gone",
}


def _notices(
    workers: Sequence[Worker], states: dict[int, dict[str, Json]], parts: Goodput, bar: dict[str, float]
) -> list[str]:
    """Lines that a user should read first."""
    found: list[str] = []
    for worker in workers:
        state = states[worker.rank]
        if state["event"] == "silent" and state["seconds"] is None:
            found.append(f"worker {worker.rank} has written nothing that can be read")
        elif state["event"] == "silent":
            place = f"; last at {state['where']}" if state["where"] else ""
            found.append(f"worker {worker.rank} has told nothing for {seconds_text(state['seconds'])}{place}")
    waiting = [one.rank for one in workers if states[one.rank].get("waits_for")]
    if waiting:
        more = f" (and {len(waiting) - 1} more)" if len(waiting) > 1 else ""
        found.append(f"worker {waiting[0]}{more} {states[waiting[0]]['words']}")
    wall = sum(bar.values())
    for one in _held(parts)[:3]:
        if one["seconds"] > _NOTABLE * wall:
            cause = _CAUSES.get(one["cause"], one["cause"])
            found.append(
                f"the others waited {one['seconds']:.1f} s of {wall:.0f} s for worker {one['rank']}, for {cause}"
            )
    return found


def _worker(worker: Worker, state: dict[str, Json], parts: Goodput, table: HostArray) -> dict[str, Json]:
    memory = worker.usage.get("mem")
    return {
        "rank": worker.rank,
        "host": str(worker.about.get("host", ""))[:200],
        "pid": int(number(worker.about.get("pid"))),
        "starts": len(worker.starts),
        "devices": len(worker.devices),
        "kind": worker.devices[0] if worker.devices else "",
        "steps": worker.steps(),
        "p50": quantile(worker.bins, 0.5),
        "p99": quantile(worker.bins, 0.99),
        "rss": int(number(worker.usage.get("rss"))),
        "memory": [[int(number(one[0])), int(number(one[1]))] for one in memory] if isinstance(memory, list) else [],
        "position": int(number(worker.usage["pos"])) if "pos" in worker.usage else None,
        "examples": int(table[:, _EXAMPLES].sum()) if len(table) else 0,
        "bar": parts.workers[worker.rank],
        **state,
    }
