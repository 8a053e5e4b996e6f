"""Figures for a reader: numbers with their units, and tables without lines."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.table import Table


def bytes_text(count: float) -> str:
    """Bytes in the unit that keeps the number short: `640 B`, `66.0 KB`, `1.2 GB` (powers of 1,000)."""
    # Powers of 1,000, as makers of memory and links count.
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def seconds_text(seconds: float) -> str:
    """`35.0 us`, `1.25 ms` or `3.10 s`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def shape_text(shape: tuple[int, ...]) -> str:
    """`64 x 256`, or `scalar`."""
    return " x ".join(map(str, shape)) or "scalar"


def marked(text: str, mine: bool) -> str:
    """The first cell of a row, with a mark if it is the row that was asked for: files and pipes show no bold."""
    return f"> {text}" if mine else text


def table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]] = (),
    *,
    words: Collection[str] = (),
    title_style: str = "table.title",
    wrap: bool = False,
) -> Table:
    """Makes a table without lines, to which rows can be added.

    Args:
      title: the line above the table.
      headings: one for each column. Columns of numbers stand to the right; those without a heading hold words.
      rows: the rows that are known by now.
      words: headings of further columns that hold words, and stand to the left.
      title_style: Rich's style of the title.
      wrap: True to break headings and cells over lines where the terminal is narrow.
    """
    # Padding on the right alone: the first column begins where the text around the table does.
    result = Table(title=title, title_justify="left", title_style=title_style, box=None, padding=(0, 2, 0, 0))
    for heading in headings:
        left = not heading or heading in words
        result.add_column(heading, justify="left" if left else "right", no_wrap=not wrap)
    for row in rows:
        result.add_row(*row)
    return result
