"""Views of islands: who trains together, since when, and what each change has cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from jaxtribute._src.addons.live.windows import seconds_text
from jaxtribute._src.addons.live.worker import Event, View, Worker
from jaxtribute.typing import Json

_CLOCKS_S = 1.0
"""Seconds that the clocks of machines may differ."""


def views_of(workers: Iterable[Worker], since: float) -> list[View]:
    """The views of all islands from a time on, each once: when the first took a step in it, and its longest time.

    Args:
      workers: the islands.
      since: the start of the launch; views of an earlier one in this folder have the same numbers.
    """
    found: dict[tuple[int, tuple[int, ...]], View] = {}
    views = (view for worker in workers for view in worker.views if view.time > since - _CLOCKS_S)
    for view in sorted(views, key=lambda view: view.time):
        key = view.number, view.islands
        first = found.setdefault(key, view)
        found[key] = replace(first, seconds=max(first.seconds, view.seconds))
    return list(found.values())


def islands_of(workers: Sequence[Worker], since: float) -> dict[str, Json] | None:
    """The islands as the page and programs see them; None if the workers are none, or have taken no step since then."""
    views = views_of(workers, since)
    if not views:
        return None
    return {
        "view": views[-1].number,
        "members": list(views[-1].islands),
        "changes": len(views) - 1,
        "recovery": sum(view.seconds for view in views),
        "restarts": sum(max(len(worker.starts) - 1, 0) for worker in workers),
    }


def view_events(workers: Iterable[Worker], since: float) -> list[Event]:
    """A line for each change of the islands since a time."""
    events: list[Event] = []
    for before, view in pairwise(views_of(workers, since)):
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
