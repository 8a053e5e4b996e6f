"""The terminal view of a run."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from jaxtribute._src.addons.live.state import TROUBLE, Run
from jaxtribute._src.addons.live.windows import seconds_text
from jaxtribute._src.addons.tools.tables import bytes_text
from jaxtribute.typing import Json

COLOURS = {
    "step": "green",
    "input": "yellow",
    "collective": "magenta",
    "save": "blue",
    "compile": "cyan",
    "recovery": "red",
    "lost": "bright_red",
    "other": "bright_black",
}
_STATES = COLOURS | {"wait": "magenta", "flush": "blue", "restore": "red", "silent": "red", "failed": "red"}
_BLOCK = "█"
_TURNS = (0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that turn the direction of what follows."""
_CONTROL = dict.fromkeys((*range(32), *range(127, 160), *_TURNS), "�")
_WIDE = 160
_LONGEST = 24
"""Letters of a machine's name."""


def plain(value: Json) -> str:
    """Text of a job without what a terminal would take for a command."""
    return str(value).translate(_CONTROL)


def view(state: dict[str, Json], width: int) -> RenderableType:
    """The whole view of a run's state."""
    parts: list[RenderableType] = [_head(state), Text(), bar(state["goodput"], state, max(20, width - 2)), Text()]
    parts += [Text(f"! {plain(notice)}", "bold yellow") for notice in state["notices"]]
    parts.append(_workers(state["workers"]))
    if state["parameter_servers"]:
        parts += _servers(state["parameter_servers"])
    if state["metrics"]:
        parts.append(_metrics(state["metrics"]))
    # The newest six, of which saves take no failure's place: failures first, each kind in the order of time.
    events = sorted(state["events"], key=lambda event: event["kind"] in TROUBLE)[-6:]
    events.sort(key=lambda event: event["kind"] not in TROUBLE)
    if events:
        parts.append(Text("\nlately", "bold"))
    for event in events:
        who = "" if event["rank"] is None else f"worker {event['rank']}: "
        took = "" if event["seconds"] is None else f" ({seconds_text(event['seconds'])})"
        line = (
            f"{time.strftime('%H:%M:%S', time.localtime(event['time']))}  {event['kind']}  {who}{event['text']}{took}"
        )
        parts.append(Text(plain(line), "red" if event["kind"] == "failure" else "", overflow="ellipsis", no_wrap=True))
    return Group(*parts)


def _head(state: dict[str, Json]) -> Text:
    rates, step = state["rates"], state["step"]
    text = Text()
    text.append(plain(state["name"]), "bold")
    text.append(f"  {state['status']}", "green" if state["status"] in ("runs", "done") else "red")
    text.append(f"  {seconds_text(state['wall'])}, start {state['starts']}, {len(state['workers'])} worker(s)\n")
    # What a process counts begins with it.
    since = " since the last start" if state["starts"] > 1 else ""
    # All that happens counts in this rate, waiting and compiling too: it need not be that of the median below.
    goes_on = state["status"] in ("runs", "starts")
    now, when = ("_now", "now ") if goes_on else ("", "")
    examples = rates.get(f"examples{now}", 0)
    text.append(f"{state['steps']:,} steps{since}, {when}{rates.get(f'steps{now}', 0):,.3g} a second")
    text.append(f" with {examples:,.0f} examples; " if examples else "; ")
    text.append(f"step time {seconds_text(step['p50'])} (median), {seconds_text(step['p99'])} (p99)")
    if step["predicted"]:
        text.append(f"; predicted {seconds_text(step['predicted'])}")
    islands = state["islands"]
    if islands is not None:
        names = ", ".join(map(str, islands["members"]))
        text.append(f"\nislands {names} train together (view {islands['view']}); {islands['changes']} change(s) cost ")
        text.append(f"{seconds_text(islands['recovery'])} of steps, {islands['restarts']} restart(s)")
    return text


def bar(parts: dict[str, float], state: dict[str, Json], width: int) -> Text:
    """The parts of the time as a bar of letters, and what each colour means."""
    total = sum(parts.values()) or 1.0
    text, drawn, summed = Text(), 0, 0.0
    for name in state["parts"]:
        summed += parts[name]
        # The sums are rounded, not the parts, so that the bar is as wide as it is told.
        upto = round(width * summed / total)
        text.append(_BLOCK * (upto - drawn), COLOURS[name])
        drawn = upto
    text.append("\n")
    for name in state["parts"]:
        if parts[name] >= 0.0005 * total:
            text.append(f"{_BLOCK} ", COLOURS[name])
            text.append(f"{state['labels'][name]} {100 * parts[name] / total:.1f} %  ")
    return text


def _workers(workers: Sequence[dict[str, Json]]) -> Table:
    table = _table(("worker", "state", "since"), ("step", "median", "p99", "goodput", "memory"))
    for one in workers:
        total = sum(one["bar"].values()) or 1.0
        memory = sum(used for used, _ in one["memory"]) or one["rss"]
        table.add_row(
            f"{one['rank']} {plain(one['host'])[:_LONGEST]}",
            Text(plain(one["words"]), _STATES.get(one["event"], "")),
            seconds_text(one["seconds"]),
            f"{one['steps']:,}",
            seconds_text(one["p50"]),
            seconds_text(one["p99"]),
            f"{100 * one['bar']['step'] / total:.0f} %",
            bytes_text(memory) if memory else "-",
        )
    return table


def _servers(found: dict[str, Json]) -> list[RenderableType]:
    """Parameter servers, and the staleness of what their workers compute with."""
    parts: list[RenderableType] = [Text("\nparameter servers", "bold")]
    queue = found["coordinator"]
    if queue is not None:
        text = f"{queue['waiting']:,.0f} closures queued, {queue['running']:,.0f} running, "
        text += f"{queue['done']:,.0f} done, {queue['failed']:,.0f} failed; the coordinator: {queue['words']}"
        parts.append(Text(plain(text), overflow="ellipsis", no_wrap=True))
    servers = _table(("server", "state"), ("size", "requests", "per second", "busy", "queued", "restarts"))
    for one in found["servers"]:
        servers.add_row(
            f"{plain(one['name'])} {plain(one['host'])[:_LONGEST]}",
            Text(plain(one["words"]), _STATES.get(one["event"], "")),
            bytes_text(int(one["bytes"])),
            f"{one['requests']:,.0f}",
            _rate(one["requests_rate"]),
            "-" if one["busy_rate"] is None else f"{min(100.0, 100 * one['busy_rate']):.0f} %",
            f"{one['waiting']:.0f}",
            f"{one['restarts']}",
        )
    workers = _table(("worker",), ("pulls", "mean staleness", "last", "max", "pushes", "received", "sent"))
    for one in found["workers"]:
        workers.add_row(
            f"{one['index']}",
            f"{one['pulls']:,.0f}",
            "-" if one["stale"] is None else f"{one['stale']:.2f}",
            f"{one['behind_now']:,.0f}",
            f"{one['most_behind']:,.0f}",
            f"{one['pushes']:,.0f}",
            bytes_text(int(one["received"])),
            bytes_text(int(one["sent"])),
        )
    return [*parts, servers, workers]


def _table(left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for name in left:
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3g}"


def _metrics(metrics: dict[str, list[list[float]]]) -> Text:
    text = Text("\n")
    for name, points in list(metrics.items())[:12]:
        if points:
            text.append(f"{plain(name)} ", "bold")
            text.append(f"{points[-1][2]:.5g}   ")
    return text


def show(run: Run, console: Console, *, once: bool) -> None:
    """Shows a run until Ctrl-C, or once.

    Args:
      run: the run.
      console: where it is shown.
      once: whether to print it and return, as is done anyway for whoever is no terminal, such as a pipe.
    """
    if not console.is_terminal:
        console.width = max(console.width, _WIDE)  # a file or a pipe has no width, and Rich takes 80
    if once or not console.is_terminal:
        console.print(view(run.state(), console.width))
        return
    # Drawn once for each state: there is nothing new in between.
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(view(run.state(), console.width), refresh=True)
            time.sleep(1.0)
