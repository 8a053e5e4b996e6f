"""State of a run as text for Prometheus: https://prometheus.io/docs/instrumenting/exposition_formats/."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from jaxtribute._src.addons.live.state import TROUBLE
from jaxtribute.typing import Json

Sample = tuple[str, dict[str, str], float]
"""Name, labels and value."""


def prometheus(state: dict[str, Json]) -> bytes:
    """The state of a run as lines of numbers, each kind below its type."""
    lines: list[str] = []
    told = ""
    for name, labels, value in _samples(state):
        if name != told:
            told = name
            lines.append(f"# TYPE jaxtribute_{name} gauge")
        given = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
        lines.append(f"jaxtribute_{name}{{{given}}} {value!r}")
    # A job may have printed halves of surrogates, which no encoding has.
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")


def _samples(state: dict[str, Json]) -> Iterator[Sample]:
    yield "status", {"status": str(state["status"])}, 1
    if state["code"] is not None:
        yield "exit_code", {}, state["code"]
    yield "seconds", {}, state["wall"]
    yield "starts", {}, state["starts"]
    yield "steps", {}, state["steps"]
    for unit in ("steps", "examples"):
        yield f"{unit}_per_second", {}, state["rates"].get(f"{unit}_now", 0.0)
    for name, quantile in (("p50", "0.5"), ("p99", "0.99")):
        if state["step"][name] is not None:
            yield "step_seconds", {"quantile": quantile}, state["step"][name]
    for part, seconds in state["goodput"].items():
        yield "part_seconds", {"part": part}, seconds
    yield "goodput", {}, state["goodput"]["step"] / (sum(state["goodput"].values()) or 1.0)
    kinds = Counter(event["kind"] for event in state["events"])
    for kind in sorted(TROUBLE):
        yield "events", {"kind": kind}, kinds[kind]
    # Of a job that has ended well nobody need be called: what slowed it down is over.
    yield "notices", {}, 0 if state["status"] == "done" else len(state["notices"])
    yield from _of_workers(state["workers"])
    for name, points in state["metrics"].items():
        if points:
            yield "metric", {"name": name}, points[-1][2]
    for name in ("view", "changes", "recovery", "restarts") if state["islands"] else ():
        yield f"islands_{name}", {}, state["islands"][name]


def _of_workers(workers: Sequence[dict[str, Json]]) -> Iterator[Sample]:
    for name, key in (("worker_state_seconds", "seconds"), ("worker_memory_bytes", "rss")):
        for worker in workers:
            if worker[key] is not None:
                yield name, {"worker": str(worker["rank"]), "state": worker["event"]}, worker[key]
    for name, place in (("device_memory_bytes", 0), ("device_memory_limit_bytes", 1)):
        for worker in workers:
            for device, memory in enumerate(worker["memory"]):
                yield name, {"worker": str(worker["rank"]), "device": str(device)}, memory[place]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
