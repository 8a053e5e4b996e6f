"""Pictures for a terminal, by Rich."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from jaxtribute._src.addons.tools.tables import bytes_text, table
from jaxtribute._src.addons.visualize.placement import Cell, How, Placement, Row
from jaxtribute._src.addons.visualize.reading import Bar, Reading

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow")
_WIDTH = 8
_BAR = 64
_MOST = 8
"""Columns of devices at most; those in the middle are left out."""


def placement_text(placement: Placement, limit: int) -> RenderableType:
    """A table: a row for each array, a column for each device."""
    places = shown(len(placement.columns), _MOST)
    columns = ["…" if place is None else placement.columns[place] for place in places]
    drawn = table(placement.title, ["", "", *columns, ""], words=columns, title_style="bold")
    for row in placement.rows[:limit]:
        cells = [Text("…", "dim") if place is None else _cell(row, row.cells[place]) for place in places]
        drawn.add_row(row.name, Text(row.kind(), "dim"), *cells, Text(row.how.value, "dim"))
    if len(placement.rows) > limit:
        drawn.add_row(Text(f"… {len(placement.rows) - limit:,} more", "dim"))
    total = placement.bytes_per_column()
    sums = [Text("…", "dim") if place is None else Text(bytes_text(total[place]), "bold") for place in places]
    drawn.add_row(Text("in all", "bold"), "", *sums, "")
    return drawn


def shown(count: int, most: int) -> list[int | None]:
    """Indices of the columns that are drawn, of `count`: at most `most` and a gap; None stands for the gap."""
    if count <= most:
        return list(range(count))
    return [*range(most - 2), None, count - 1]


def part_text(row: Row, cell: Cell) -> str:
    """Text on a cell: the elements of the axes that are split."""
    if row.how is How.OWN:
        return "own"
    if any(start == stop for start, stop in cell.bounds) and any(row.shape):
        return "none"
    parts: list[str] = []
    for (start, stop), size in zip(cell.bounds, row.shape, strict=True):
        if (start, stop) != (0, size):
            parts.append(f"{start}:{stop}")
    return ", ".join(parts) or "all"


def _cell(row: Row, cell: Cell | None) -> Text:
    if cell is None:
        return Text("─" * _WIDTH, "dim")
    start, stop = extent(row, cell)
    # A small part takes one letter at least, or it could not be seen.
    first, last = round(start * _WIDTH), max(round(stop * _WIDTH), round(start * _WIDTH) + (stop > start))
    colour = COLOURS[cell.content % len(COLOURS)]
    label = part_text(row, cell)
    return Text.assemble(
        ("░" * first, "dim"),
        ("█" * (last - first), colour),
        ("░" * (_WIDTH - last), "dim"),
        "" if label == "all" else f"\n{label}",
    )


def extent(row: Row, cell: Cell) -> tuple[float, float]:
    """Position of the cell within the whole along the axis that is split, from 0 to 1."""
    for (start, stop), size in zip(cell.bounds, row.shape, strict=False):
        if (start, stop) != (0, size) and size:
            return start / size, stop / size
    return 0.0, 1.0


def reading_text(reading: Reading) -> RenderableType:
    """Bars of batches, and a table of the workers."""
    blocks: list[RenderableType] = [Text(reading.title, "bold")]
    for bar in reading.bars:
        blocks += [Text(f"\n{bar.caption()}"), _bar(bar, reading.longest)]
    workers = reading.explanation.table()
    workers.title = None
    return Group(*blocks, Text(), workers)


def _bar(bar: Bar, longest: int) -> Text:
    line = Text("  ")
    drawn = 0
    for part in bar.parts:
        # Ends are rounded, not widths, so that the bar is as long as the batch.
        end = round(part.stop / longest * _BAR)
        line += Text("█▓"[part.replica % 2] * (end - drawn), COLOURS[part.replica % len(COLOURS)])
        drawn = end
    line += Text("░" * (_BAR - drawn), "dim")
    return line + Text("\n  " + sizes_text(bar.sizes), "dim")


def sizes_text(sizes: Sequence[int]) -> str:
    """Number of examples per replica: `replicas 0-2: 8, replica 3: 5`."""
    groups: list[str] = []
    start = 0
    for size, same in groupby(sizes):
        count = len(list(same))
        name = f"replica {start}" if count == 1 else f"replicas {start}-{start + count - 1}"
        groups.append(f"{name}: {size:,}" + (" each" if count > 1 else ""))
        start += count
    return ", ".join(groups)
