"""`Picture`: one drawing that a terminal, a notebook and a file can all show."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np
from rich.console import Console, RenderableType

from jaxtribute import DistributedValues
from jaxtribute._src.addons.visualize.html import strategy_html, values_html
from jaxtribute._src.addons.visualize.placement import Placement, placement
from jaxtribute._src.addons.visualize.shares import shares, shares_table
from jaxtribute._src.addons.visualize.svg import placement_svg, reading_svg
from jaxtribute._src.addons.visualize.text import placement_text, reading_text
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import points, settings
from jaxtribute.typing import Nest

if TYPE_CHECKING:
    from jaxtribute import Strategy
    from jaxtribute._src.addons.visualize.reading import Reading


class Picture:
    """The result of `strategy.visualize`: text where it is printed, a drawing in a notebook, a file where it is saved.

    `str(picture)` is plain text, `rich.print(picture)` has colours, and a notebook shows the SVG.

    Attributes:
      found: what was found out, as data: a `Placement` or a `Reading`.
    """

    def __init__(self, found: Placement | Reading, limit: int = 40) -> None:
        self.found = found
        self._limit = limit

    def __rich__(self) -> RenderableType:
        if isinstance(self.found, Placement):
            return placement_text(self.found, self._limit)
        return reading_text(self.found)

    def __str__(self) -> str:
        """The picture as plain text, at most 200 columns wide."""
        # A fixed width: a file looks the same wherever it was written.
        console = Console(file=io.StringIO(), width=200, color_system=None)
        console.print(self)
        file = console.file
        assert isinstance(file, io.StringIO)
        return "\n".join(map(str.rstrip, file.getvalue().splitlines()))

    __repr__ = __str__

    def svg(self) -> str:
        """The picture as one SVG element."""
        if isinstance(self.found, Placement):
            return placement_svg(self.found, self._limit)
        return reading_svg(self.found)

    def _repr_html_(self) -> str:
        return f"<div style='overflow-x:auto'>{self.svg()}</div>"

    def save(self, path: str | Path) -> Path:
        """Writes the picture to a file and returns its path.

        Args:
          path: ends in `.svg`, `.html` or `.txt`.

        Raises:
          ArgumentError: another ending.
        """
        path = Path(path)
        if path.suffix == ".svg":
            text = self.svg()
        elif path.suffix == ".html":
            text = f"<!doctype html><html lang='en'><meta charset='utf-8'>{self._repr_html_()}</html>"
        elif path.suffix == ".txt":
            text = str(self) + "\n"
        else:
            raise ArgumentError(
                f"{path} ends in {path.suffix!r}, for which there is no picture. HINT: end it in .svg, .html or .txt."
            )
        path.write_text(text, encoding="utf-8")
        return path


def visualize(strategy: Strategy, what: Nest, limit: int = 40) -> Picture:
    """Draws where things are; see `Strategy.visualize`."""
    name = f"{type(strategy).__name__}, {strategy.num_replicas_in_sync} replica(s)"
    each = strategy.extended.mesh.group_size
    name += f" of {each} devices" if each > 1 else ""
    settings.whole("limit", limit, 1)
    if not hasattr(what, "explanation") and _is_dataset(what):
        what = strategy.experimental_distribute_dataset(what)
    if hasattr(what, "explanation"):
        from jaxtribute._src.addons.visualize.reading import reading

        return Picture(reading(what.explanation()), limit)
    return Picture(placement(name, strategy.extended.mesh, what), limit)


class _Pictures:
    """The pictures that the core asks for."""

    picture = staticmethod(visualize)
    shares = staticmethod(shares)
    shares_table = staticmethod(shares_table)
    strategy_html = staticmethod(strategy_html)
    values_html = staticmethod(values_html)


points.PICTURES.register(_Pictures())


def _is_dataset(what: Nest) -> bool:
    """True if this is one opaque thing that can be iterated over, as datasets and loaders are."""
    # An array can be iterated over, too, and so can what holds variables.
    if isinstance(what, (DistributedValues, jax.Array, np.ndarray, str)) or hasattr(what, "variables"):
        return False
    whole = jax.tree_util.all_leaves([what])
    return whole and (hasattr(what, "__iter__") or hasattr(what, "__getitem__"))
