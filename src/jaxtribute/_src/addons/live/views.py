"""Views of islands: who trains together, since when, and what each change has cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from jaxtribute._src.addons.live.windows import seconds_text
from jaxtribute._src.addons.live.worker import Event, View, Worker
from jaxtribute.typing import Json


def views_of(workers: Iterable[Worker]) -> list[View]:
    """The views of all islands, each once: from the first that took a step in it, with the longest time of any."""
    found: dict[tuple[int, tuple[int, ...]], View] = {}
    for view in sorted((view for worker in workers for view in worker.views), key=lambda view: view.time):
        key = view.number, view.islands
        first = found.setdefault(key, view)
        found[key] = replace(first, seconds=max(first.seconds, view.seconds))
    return list(found.values())


def islands_of(workers: Sequence[Worker]) -> dict[str, Json] | None:
    """The islands as the page and programs see them; None if the workers are none."""
    views = views_of(workers)
    if not views:
        return None
    return {
        "view": views[-1].number,
        "members": list(views[-1].islands),
        "changes": len(views) - 1,
        "recovery": sum(view.seconds for view in views),
        "restarts": sum(max(len(worker.starts) - 1, 0) for worker in workers),
    }


def view_events(workers: Iterable[Worker]) -> list[Event]:
    """A line for each change of the islands."""
    events: list[Event] = []
    for before, view in pairwise(views_of(workers)):
        words = ""
        for what, ranks in (
            ("without", set(before.islands) - set(view.islands)),
            ("with", set(view.islands) - set(before.islands)),
        ):
            names = ", ".join(map(str, sorted(ranks)))
            words += f" {what} island{'s' if len(ranks) > 1 else ''} {names}" if ranks else ""
        took = f" after {seconds_text(view.seconds)}" if view.seconds else ""
        count = len(view.islands)
        text = f"goes on{words}{took}: {count} island{'s' if count > 1 else ''} (view {view.number})"
        events.append(Event(view.time, "view", None, text))
    return events
