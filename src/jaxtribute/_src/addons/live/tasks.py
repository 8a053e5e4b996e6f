"""Parameter servers of a run: what each holds and does, and what waits for their workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from jaxtribute._src.addons.live.attempts import Attempt
from jaxtribute._src.addons.live.doing import doing
from jaxtribute._src.addons.live.worker import COORDINATOR, Worker, number
from jaxtribute.extending import whole_number
from jaxtribute.typing import Json

_OF_SERVERS = ("bytes", "shards", "requests", "waiting", "busy")
_OF_WORKERS = ("sent", "received", "pushes", "pulls", "behind", "behind_now", "most_behind")
_OF_COORDINATOR = ("waiting", "running", "done", "failed")
_SERVERS = ("ps", "mirror")
_OVER = ("silent", "ended", "failed", "starting")
_FRESH_S = 3.0
_POINTS = 240


def parameter_servers(
    processes: Mapping[tuple[str, int], Worker], attempt: Attempt | None, now: float
) -> dict[str, Json] | None:
    """Returns the state of parameter servers for the page; None for a run without.

    Args:
      processes: all processes of the run, by role and number.
      attempt: the last start of the job.
      now: seconds since 1970.
    """
    found: dict[str, dict[str, Json]] = {}
    for (role, rank), process in sorted(processes.items()):
        figures = process.figures or ({f"{role} {rank}": {}} if role in _SERVERS else {})
        for name, counted in figures.items():
            found[name] = _task(name, counted, process, now) | _state(name, process, attempt, now)
    if not found:
        return None
    return {
        "coordinator": found.get(COORDINATOR),
        "servers": _of(found, "ps") + _of(found, "mirror"),
        "workers": _of(found, "worker"),
        "queue": _queue(list(processes.values())),
    }


def _of(found: Mapping[str, dict[str, Json]], role: str) -> list[dict[str, Json]]:
    """Tasks of a role, by their numbers."""
    tasks = [task for name, task in found.items() if name.partition(" ")[0] == role]
    return sorted(tasks, key=lambda task: task["index"])


def _task(name: str, figures: dict[str, Json], process: Worker, now: float) -> dict[str, Json]:
    """Figures of a task, those per second over the time since its last window."""
    role, _, index = name.partition(" ")
    known = {COORDINATOR: _OF_COORDINATOR, "worker": _OF_WORKERS}.get(role, _OF_SERVERS)
    task: dict[str, Json] = {"name": name, "role": role, "index": whole_number(index) or 0}
    for figure in known:
        task[figure] = number(figures.get(figure))
    if role == COORDINATOR:
        absent = figures.get("absent")
        task["absent"] = [int(number(one)) for one in absent] if isinstance(absent, list) else []
        return task
    counted = ("requests", "busy") if role != "worker" else ("sent", "received", "pushes")
    since, earlier = process.earlier()
    before, seconds = earlier.get(name, {}), process.figures_at - since
    for figure in counted:
        more = task[figure] - number(before.get(figure))
        # A count that has become smaller is one of a process that was started again.
        fresh = before and seconds > 0 and more >= 0 and now - process.figures_at < _FRESH_S
        task[f"{figure}_rate"] = more / seconds if fresh else None
    task["stale"] = task["behind"] / task["pulls"] if role == "worker" and task["pulls"] else None
    return task


def _state(name: str, process: Worker, attempt: Attempt | None, now: float) -> dict[str, Json]:
    state = doing(process, attempt, now)
    words = state["words"]
    if state["event"] not in _OVER and process.role in _SERVERS:
        words = "serves"
    elif state["event"] not in _OVER and process.role == "worker" and name != COORDINATOR:
        words = "a thread of the coordinator's process"
    host, restarts = str(process.about.get("host", ""))[:200], max(0, len(process.starts) - 1)
    return {"host": host, "words": words, "event": state["event"], "restarts": restarts, "where": state["where"]}


def _queue(processes: Sequence[Worker]) -> list[list[float]]:
    """Moments, with numbers of functions that waited for a worker then, of which some stand for all."""
    # One process has the coordinator, and it alone counts what waits.
    points = next(filter(None, map(attrgetter("queue"), processes)), [])
    stride = max(1, -(-len(points) // _POINTS))
    # Counted from the end, so that the last moment is always among those shown.
    return list(map(list, points[::-stride][::-1]))
