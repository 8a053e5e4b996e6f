"""A place in a program, what it means here, and the edits that change it."""

from __future__ import annotations

import ast
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from jaxtribute._src.addons.compat.catalog.lookup import Kind

_N = TypeVar("_N", bound=ast.AST)


@dataclass(frozen=True, slots=True)
class Edit:
    """Bytes of a program to replace.

    Attributes:
      start: the number of the first byte.
      end: the number of the byte after the last one.
      text: what takes their place.
    """

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A use of TensorFlow.

    Attributes:
      line: its line, from 1.
      column: its column, from 1.
      name: the name that is used.
      kind: what that is here.
      advice: what differs, and what to write.
      edits: the change, if it is mechanical.
    """

    line: int
    column: int
    name: str
    kind: Kind
    advice: str = ""
    edits: tuple[Edit, ...] = ()


class Source:
    """The text of a program, and where its lines begin."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        # Python's `ast` counts columns in bytes of UTF-8.
        self._bytes = text.encode()
        self._starts = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def place(self, line: int, column: int) -> int:
        """The number of the byte in a line, from 1, at a column, from 0."""
        return self._starts[line - 1] + column

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """The bytes of a node."""
        return self.place(node.lineno, node.col_offset), self.place(node.end_lineno or 0, node.end_col_offset or 0)

    def of(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self._bytes[start:end].decode()

    def lines(self, first: int, last: int) -> str:
        """The text of whole lines, from 1, both included."""
        return self._bytes[self._starts[first - 1] : self._starts[min(last, len(self._starts) - 1)]].decode()

    def line(self, number: int) -> str:
        """The text of one line."""
        return self.lines(number, number)

    def before(self, node: ast.expr | ast.stmt) -> str:
        """The text before a node on its line: its indentation, if nothing else stands there."""
        return self._bytes[self._starts[node.lineno - 1] : self.span(node)[0]].decode()

    def replace_lines(self, first: int, last: int, text: str) -> Edit:
        """The edit that puts `text` in the place of whole lines."""
        return Edit(self._starts[first - 1], self._starts[min(last, len(self._starts) - 1)], text)

    def replace(self, node: ast.expr | ast.stmt, text: str) -> Edit:
        """The edit that puts `text` in the place of a node."""
        return Edit(*self.span(node), text)

    def wrap(self, node: ast.expr, inner: ast.expr, start: str) -> tuple[Edit, Edit]:
        """The edits that make `start` + `inner` of a node, with each `(` closed, and leave `inner` itself to others."""
        (first, last), (begin, end) = self.span(node), self.span(inner)
        return Edit(first, begin, start), Edit(end, last, ")" * start.count("("))

    def apply(self, edits: Iterable[Edit]) -> str:
        """The program with edits made, of which none may lie within another."""
        pieces: list[bytes] = []
        done = 0
        for edit in sorted(edits, key=_order):
            pieces += self._bytes[done : edit.start], edit.text.encode()
            done = edit.end
        return b"".join([*pieces, self._bytes[done:]]).decode()


def whole_changes(changes: Iterable[tuple[Edit, ...]]) -> list[Edit]:
    """The edits of those changes that can be made together: each as a whole, and the outer ones first."""
    # Two findings may ask for the same change; of two that begin at a place, the first one is made first.
    waiting = sorted(dict.fromkeys(filter(None, changes)), key=lambda change: min(map(_order, change)))
    kept: list[Edit] = []
    for change in waiting:
        if not any(_meet(edit, other) for edit in change for other in _near(edit, kept)):
            for edit in change:
                insort(kept, edit, key=lambda one: (one.start, one.end))
    return kept


def _near(edit: Edit, kept: list[Edit]) -> list[Edit]:
    """Those of edits in order, no two of which meet, that end after another one begins, and begin before its end."""
    first = bisect_left(kept, edit.start, key=lambda one: one.end)
    return kept[first : bisect_right(kept, edit.end, key=lambda one: one.start)]


def _meet(edit: Edit, other: Edit) -> bool:
    """True if two edits change the same bytes, or put something at the same place."""
    return (
        (edit.start < other.end and other.start < edit.end)
        or edit == other
        or (edit.start == edit.end == other.start == other.end)
    )


def nodes(tree: ast.AST, kind: type[_N]) -> Iterator[_N]:
    """The nodes of a kind in a tree, the tree itself among them, in the order of `ast.walk`."""
    for node in ast.walk(tree):
        if isinstance(node, kind):
            yield node


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Finds the value that a call is given by the keyword `name`."""
    for given in call.keywords:
        if given.arg == name:
            return given.value
    return None


def assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """The value of each name that is assigned once in a program."""
    found: dict[str, ast.expr] = {}
    several: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            several |= {name} & found.keys()
            found[name] = node.value
        # An argument, a loop or `+=` gives the name a value that the text does not show.
        elif isinstance(node, (ast.arg, ast.For, ast.AugAssign)):
            target = node.arg if isinstance(node, ast.arg) else getattr(node.target, "id", "")
            several.add(target)
    return {name: value for name, value in found.items() if name not in several}


def text_of(node: ast.expr, values: dict[str, ast.expr], depth: int = 8) -> str | None:
    """Finds the text that an expression gives; None if it cannot be read.

    Args:
      node: the expression.
      values: see `assigned`.
      depth: how many names are followed: two that are assigned from each other would go round for ever.
    """
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name) and depth and node.id in values:
        return text_of(values[node.id], values, depth - 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _joined([node.left, node.right], values, depth)
    if isinstance(node, ast.JoinedStr):
        return _joined(node.values, values, depth)
    if isinstance(node, ast.FormattedValue):
        return text_of(node.value, values, depth)
    return None


def _joined(parts: Sequence[ast.expr], values: dict[str, ast.expr], depth: int) -> str | None:
    texts = [text_of(part, values, depth) for part in parts]
    return None if None in texts else "".join(map(str, texts))


def _order(edit: Edit) -> tuple[int, bool, int]:
    """Sort key of an edit: of those that begin together insertions come first, then the longest."""
    return edit.start, edit.end > edit.start, -edit.end
