"""The present of a worker in words: what it does, since when, and for whom it waits."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence

from jaxtribute._src.addons.live.attempts import Attempt
from jaxtribute._src.addons.live.worker import Event, Worker, number
from jaxtribute.typing import Json

_SILENT_S = 3.0
_LOST_S = 10.0
_WORDS = {
    "step": "in a step",
    "input": "waits for input",
    "save": "saves",
    "flush": "waits for a save to be written",
    "restore": "restores",
    "wait": "waits",
    "closure": "runs",
    "compile": "compiles",
    "python": "in the program's own Python",
    "silent": "silent",
    "ended": "ended",
    "failed": "failed",
    "starting": "starting",
}


def doing(worker: Worker, attempt: Attempt | None, now: float, lost: Event | None = None) -> dict[str, Json]:
    """State of a worker: its event, since when in seconds, words, and the line of the program.

    Args:
      worker: the worker.
      attempt: the last start of the job.
      now: seconds since 1970.
      lost: of an island, the last end of its process that the launcher has told.
    """
    seen = worker.last_seen()
    began = max(worker.starts, default=0.0)
    if seen <= 0:
        return _state("silent", None)
    # Before all that looks at silence: who has ended is silent, too. An end before the last start is of an earlier one.
    if worker.ends and worker.ends[-1] >= began:
        failed = any(one.kind == "failure" and one.time >= began for one in worker.events)
        return _state("failed" if failed else "ended", max(now - worker.ends[-1], 0.0))
    if lost is not None and lost.time >= began:
        return _state("failed", max(now - lost.time, 0.0))
    if attempt is not None and attempt.end is not None:
        return _state("failed" if attempt.kind == "failed" else "ended", max(now - attempt.end, 0.0))
    if worker.now is None:
        return _state("starting", now - began) if now - seen < _LOST_S else _state("silent", now - seen)
    if now - seen > _SILENT_S:
        return _state("silent", now - seen, str(worker.now.get("where", "")))
    event = str(worker.now.get("event", "python"))
    since = worker.now.get("since")
    seconds = None if since is None else max(0.0, now - number(since))
    state = _state(event if event in _WORDS else "python", seconds, str(worker.now.get("where", "")))
    text = str(worker.now.get("for") or "")
    absent = worker.now.get("absent")
    if event == "wait":
        names = ", ".join(map(str, absent[:8])) if isinstance(absent, list) else ""
        state["words"] = f"waits {text} for {names}" if names else f"waits {text}"
    elif text:
        state["words"] += f" {text}"
    return state


def _state(event: str, seconds: float | None, where: str = "") -> dict[str, Json]:
    return {"event": event, "seconds": seconds, "words": _WORDS[event], "where": where}


def note_waits(workers: Sequence[Worker], states: Mapping[int, dict[str, Json]]) -> None:
    """Adds for whom workers in a step wait: one that has not come to that step, and is at something else."""
    running = [one for one in workers if states[one.rank]["event"] not in ("ended", "failed", "starting")]
    # One alone waits for nobody.
    if len(running) < 2:
        return
    least = min(map(Worker.steps, running))
    behind = [one for one in running if one.steps() == least and states[one.rank]["event"] != "step"]
    for worker in running:
        state = states[worker.rank]
        # One that has come no further than those behind may still compute. Only if the devices were busy for a whole
        # window do they wait for the others.
        if state["event"] != "step" or not behind or (worker.steps() <= least and not _held(worker)):
            continue
        ranks = [one.rank for one in behind if one is not worker]
        if ranks:
            state["event"] = "collective"
            names = ", ".join(f"worker {rank} ({states[rank]['words']})" for rank in ranks[:4])
            more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
            state["waits_for"] = ranks
            state["words"] = f"waits in a step for {names}{more}"


def note_absent(states: MutableMapping[int, dict[str, Json]], absent: Sequence[int]) -> None:
    """Tells of workers that the coordinator of parameter servers cannot reach."""
    for rank in absent:
        if rank in states:
            states[rank] |= {"event": "failed", "words": "not there, as the coordinator says", "where": ""}


def _held(worker: Worker) -> bool:
    """True if a worker's devices have been busy for its whole last window."""
    current = worker.current
    covered = sum(current.buckets.values()) if current is not None else 0.0
    return current is not None and covered > 0 and current.buckets.get("step", 0.0) > 0.9 * covered
