"""A place in a program, what it means here, and the edits that change it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from jaxtribute._src.compat.catalog.lookup import Kind

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

    def replace_lines(self, first: int, last: int, text: str) -> Edit:
        """The edit that puts `text` in the place of whole lines."""
        return Edit(self._starts[first - 1], self._starts[min(last, len(self._starts) - 1)], text)

    def replace(self, node: ast.expr | ast.stmt, text: str) -> Edit:
        """The edit that puts `text` in the place of a node."""
        return Edit(*self.span(node), text)

    def apply(self, edits: Iterable[Edit]) -> str:
        """The program with edits made. An edit within another one is left out: the outer one's text stays."""
        pieces: list[bytes] = []
        done = 0
        # A set, since two findings may ask for the same change.
        for edit in _outermost(sorted(set(edits), key=_order)):
            pieces += self._bytes[done : edit.start], edit.text.encode()
            done = edit.end
        return b"".join([*pieces, self._bytes[done:]]).decode()


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


def _order(edit: Edit) -> tuple[int, bool, int]:
    """Sort key of an edit: of those that begin together insertions come first, then the longest."""
    return edit.start, edit.end > edit.start, -edit.end


def _outermost(edits: Sequence[Edit]) -> list[Edit]:
    kept: list[Edit] = []
    for edit in edits:
        if not kept or edit.start >= kept[-1].end:
            kept.append(edit)
    return kept
