"""Pictures as SVG: for notebooks, pages and files."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from operator import attrgetter

from jaxtribute._src.addons.tools.tables import bytes_text
from jaxtribute._src.addons.visualize.placement import Cell, How, Placement, Row
from jaxtribute._src.addons.visualize.reading import Bar, Reading
from jaxtribute._src.addons.visualize.text import part_text, shown, sizes_text

# Told apart by most people who see few colours (after Okabe and Ito). Half of the page shines through, light or dark,
# so that text in the page's own colour can be read on them.
COLOURS = ("#8ecae6", "#f4c95d", "#8fd3a8", "#e8a5c9", "#a9b4e8", "#f0a58f", "#7fd1d1", "#d9c7a0")
_INK, _FAINT, _EMPTY, _LINE = 1.0, 0.7, 0.08, 0.45
"""Shares of the page's colour of text, in what is drawn with it."""
_MOST = 16
_BAR = 640
_FONT = "font-family='ui-sans-serif,system-ui,Helvetica,Arial,sans-serif'"


class Canvas:
    """Collects shapes and knows how large they get.

    Args:
      title: what a screen reader says.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._shapes: list[str] = []
        self._width = self._height = 0.0

    def box(self, x: float, y: float, width: float, height: float, fill: str = "", *, edge: bool = False) -> None:
        """Draws a rectangle; an empty one without a colour."""
        self._grow(x + width, y + height)
        colour = f"fill='{fill}' fill-opacity='.5'" if fill else f"fill='currentColor' fill-opacity='{_EMPTY}'"
        line = f" stroke='currentColor' stroke-opacity='{_LINE}'" if edge else ""
        self._shapes.append(
            f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.1f}' rx='2' {colour}{line}/>"
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 13,
        ink: float = _INK,
        bold: bool = False,
        middle: bool = False,
    ) -> None:
        """Writes text whose baseline is at `y`, from `x` on, or around it."""
        width = text_width(text, size)
        self._grow(x + (width / 2 if middle else width), y + size / 3)
        anchor = " text-anchor='middle'" if middle else ""
        weight = " font-weight='600'" if bold else ""
        faint = f" fill-opacity='{ink}'" if ink < 1 else ""
        style = f"{faint}{anchor}{weight}"
        self._shapes.append(
            f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' fill='currentColor'{style}>{escape(text)}</text>"
        )

    def arrow(self, x: float, y: float, end: float) -> None:
        """Draws an arrow to the right."""
        self._grow(end, y)
        self._shapes.append(
            f"<path d='M{x:.1f} {y:.1f}H{end:.1f}m-6 -4l6 4l-6 4' fill='none' stroke='currentColor' "
            f"stroke-opacity='{_FAINT}' stroke-width='1.5'/>"
        )

    def _grow(self, x: float, y: float) -> None:
        self._width, self._height = max(self._width, x), max(self._height, y)

    def svg(self) -> str:
        """The whole picture as one element."""
        width, height = self._width + 16, self._height + 16
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height:.0f}' "
            f"viewBox='0 0 {width:.0f} {height:.0f}' role='img' {_FONT} style='color-scheme:light dark'>"
            f"<title>{escape(self._title)}</title>{''.join(self._shapes)}</svg>"
        )


def text_width(text: str, size: int) -> float:
    """About how wide a text is; fonts differ, so a little more than most need."""
    return len(text) * size * 0.58


def _widest(texts: Iterable[str], size: int) -> float:
    return max((text_width(text, size) for text in texts), default=0.0)


def placement_svg(placement: Placement, limit: int) -> str:
    """A grid: a row for each array, a column for each device."""
    canvas = Canvas(f"Which device holds which part: {placement.title}")
    rows = placement.rows[:limit]
    left = 16 + _widest(map(attrgetter("name"), rows), 13) + 14
    kinds = left + _widest(map(Row.kind, rows), 12) + 14
    places = shown(len(placement.columns), _MOST)
    names = [placement.columns[place] for place in places if place is not None]
    labels = [part_text(row, cell) for row in rows for cell in row.cells if cell is not None]
    # All columns are equally wide, so that the same part of an array is as wide on each device.
    wide = max(84.0, _widest([*names, *labels], 12) + 10)
    xs = [kinds + i * (wide + 10) for i in range(len(places))]
    end = xs[-1] + wide + 14
    canvas.text(16, 28, placement.title, size=15, bold=True)
    for place, x in zip(places, xs, strict=True):
        name = "…" if place is None else placement.columns[place]
        canvas.text(x + wide / 2, 56, name, size=12, bold=True, middle=True)
    y = 66.0
    for row in rows:
        canvas.text(16, y + 20, row.name)
        canvas.text(left, y + 20, row.kind(), size=12, ink=_FAINT)
        for place, x in zip(places, xs, strict=True):
            if place is not None:
                _draw_cell(canvas, row, row.cells[place], (x, y, wide, 28))
        canvas.text(end, y + 20, row.how.value, size=12, ink=_FAINT)
        y += 36
    if len(placement.rows) > limit:
        canvas.text(16, y + 16, f"… {len(placement.rows) - limit:,} more", ink=_FAINT)
        y += 24
    canvas.text(16, y + 18, "in all", bold=True)
    for place, x in zip(places, xs, strict=True):
        if place is not None:
            held = bytes_text(placement.bytes_per_column()[place])
            canvas.text(x + wide / 2, y + 18, held, size=12, bold=True, middle=True)
    return canvas.svg()


def _draw_cell(canvas: Canvas, row: Row, cell: Cell | None, frame: tuple[float, float, float, float]) -> None:
    """The whole array as a frame, and the part that lies here filled; of two split axes the first points downwards."""
    x, y, width, height = frame
    if cell is None:
        canvas.text(x + width / 2, y + 18, "none", size=12, ink=_LINE, middle=True)
        return
    canvas.box(x, y, width, height, edge=True)
    spans = [(0.0, 1.0), (0.0, 1.0)]
    if row.how is How.SPLIT:
        split: list[tuple[float, float]] = []
        for (start, stop), size in zip(cell.bounds, row.shape, strict=True):
            if size and (start, stop) != (0, size):
                split.append((start / size, stop / size))
        spans = [split[1], split[0]] if len(split) > 1 else [*split, *spans[len(split) :]]
    (left, right), (top, bottom) = spans
    if right > left and bottom > top:
        colour = COLOURS[cell.content % len(COLOURS)]
        canvas.box(
            x + left * width, y + top * height, (right - left) * width, (bottom - top) * height, colour, edge=True
        )
    canvas.text(x + width / 2, y + 18, part_text(row, cell), size=12, middle=True)


def reading_svg(reading: Reading) -> str:
    """Bars of batches, cut for the replicas, and a line for each worker."""
    canvas = Canvas(f"Which replica reads which examples: {reading.title}")
    canvas.text(16, 28, reading.title, size=15, bold=True)
    y = 40.0
    for bar in reading.bars:
        y = _draw_bar(canvas, bar, reading.longest, y)
    explanation = reading.explanation
    for worker in explanation.workers[:_MOST]:
        first, last = worker.replicas[0], worker.replicas[-1]
        replicas = f"replica {first}" if first == last else f"replicas {first}-{last}"
        counts = "an unknown number of" if worker.examples is None else f"{worker.examples:,}"
        line = f"worker {worker.worker} ({replicas}): computes {counts} examples a pass"
        if worker.reads is not None and worker.reads != worker.examples:
            line += f", reads {worker.reads:,} for that"
        if worker.files:
            more = f" and {len(worker.files) - 2} more" if len(worker.files) > 2 else ""
            line += f", from {', '.join(worker.files[:2])}{more}"
        y += 20
        canvas.text(16, y, line, size=12, ink=_FAINT)
    if len(explanation.workers) > _MOST:
        y += 20
        canvas.text(16, y, f"… {len(explanation.workers) - _MOST:,} more workers", size=12, ink=_FAINT)
    if explanation.left_over:
        y += 20
        canvas.text(16, y, f"left over at the end of a pass: {explanation.left_over:,}", size=12, ink=_FAINT)
    return canvas.svg()


def _draw_bar(canvas: Canvas, bar: Bar, longest: int, y: float) -> float:
    canvas.text(16, y + 20, bar.caption())
    canvas.box(16, y + 28, _BAR, 30, edge=True)
    for part in bar.parts:
        # A replica without an example would be a line between two others.
        if part.stop == part.start:
            continue
        x, width = 16 + part.start / longest * _BAR, (part.stop - part.start) / longest * _BAR
        # Of a very narrow part the edge would hide the colour.
        canvas.box(x, y + 28, width, 30, COLOURS[part.replica % len(COLOURS)], edge=width > 4)
        label = f"{part.start}:{part.stop}"
        if text_width(label, 12) < width:
            canvas.text(x + width / 2, y + 47, label, size=12, middle=True)
    canvas.text(16, y + 76, sizes_text(bar.sizes), size=12, ink=_FAINT)
    return y + 86
