"""Programs as they lie in files: Python in any encoding, and notebooks, whose code cells are one program.

Lines for IPython (`!pip install ...`, `%magic`, `name?`) are no Python. Each becomes a statement that does nothing,
with the line itself in a comment, until the program is written back. A cell that writes a Python file (`%%writefile
main.py`) holds a program of its own.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import tokenize
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

# With a letter that no program holds by chance: whatever follows the mark is put back as it stands.
HIDDEN = "# \N{SYMBOL FOR NULL}jaxtribute: "
"""Stands before a line that is not Python."""
_CELL = "# \N{SYMBOL FOR NULL}jaxtribute cell"
"""Stands alone on the line before each cell."""
# Up to the two spaces and the mark stands the statement that took the line's place; only the indentation stays.
_RESTORED = re.compile(rf"^([ \t]*).*?  {HIDDEN}(.*)$", re.MULTILINE)
# `!command`, `%magic`, `name = !command`, `name?`: within a block too, so that the indentation is kept apart.
_MAGIC = re.compile(r"^(?P<indent>[ \t]*)(?P<text>(?:(?P<target>[\w., \t]+?)[ \t]*=[ \t]*)?[!%?].*|\S.*\?[ \t]*)$")
# Options, such as `-a`, may stand before the file's name.
_WRITES_A_FILE = re.compile(r"%%(?:writefile|file)[ \t]+(?:-\w+[ \t]+)*(?P<name>\S+\.py)[ \t]*\n")
_OF_PYTHON = ("capture", "prun", "time", "timeit")
"""Magics of a whole cell below which the cell is Python all the same."""


class Program(ABC):
    """A program, and where its lines are found.

    Attributes:
      text: the program as Python.
    """

    text: str

    @abstractmethod
    def place(self, line: int) -> str:
        """A line of `text`, from 1, as a reader of the file finds it."""


class Document(Program):
    """A program in a file.

    Attributes:
      parts: further programs in the same file, each of which is a file of its own when the program runs.
    """

    parts: Sequence[Program] = ()

    @abstractmethod
    def rewritten(self, text: str, *parts: str) -> bytes:
        """The file with another program in it, and others in place of its `parts`.

        Raises:
          UnicodeEncodeError: the file's encoding has not all of its letters.
        """


class WrittenFile(Program):
    """A Python file that a cell of a notebook writes.

    Args:
      number: the cell's number among all of the notebook.
      cell: the cell.

    Raises:
      SyntaxError: it is not Python.
    """

    def __init__(self, number: int, cell: dict[str, Any]) -> None:
        self._number, self._cell = number, cell
        self._head, _, text = _source(cell).lstrip().partition("\n")
        self.text = readable(text, f"cell {number}: ")

    def place(self, line: int) -> str:
        """The cell's number, and the line in it, where the first line names the file."""
        return f"cell {self._number}:{line + 1}"

    def write(self, text: str) -> None:
        """Puts another program into the cell."""
        _put(self._cell, f"{self._head}\n{_restored(text)}")


class Script(Document):
    """A Python file, in the encoding that its first lines name.

    Args:
      data: the file.
    """

    def __init__(self, data: bytes) -> None:
        self._encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        self.text = readable(data.decode(self._encoding), "")

    def place(self, line: int) -> str:
        return str(line)

    def rewritten(self, text: str, *parts: str) -> bytes:
        """The text in the file's encoding, with a byte-order mark if there was one."""
        assert not parts
        return _restored(text).encode(self._encoding)


class Notebook(Document):
    """A Jupyter notebook of format 4.

    Args:
      data: the file.

    Raises:
      ValueError: it is no such notebook, or not one of Python.
    """

    def __init__(self, data: bytes) -> None:
        # Some editors write a byte-order mark, which JSON does not allow.
        self._json = data.decode("utf-8-sig")
        self._content = _notebook(self._json)
        self._cells: list[tuple[int, dict[str, Any]]] = []
        self._starts: list[int] = []
        """The line of `text` before each cell's first one."""
        files: list[WrittenFile] = []
        lines: list[str] = []
        for number, cell in enumerate(self._content["cells"], 1):
            if cell.get("cell_type") != "code":
                continue
            if _WRITES_A_FILE.match(_source(cell).lstrip()):
                with contextlib.suppress(SyntaxError):  # such a cell is only looked at, as those of other languages
                    files.append(WrittenFile(number, cell))
                    continue
            text = readable(_source(cell), f"cell {number}: ")
            lines.append(_CELL)
            self._starts.append(len(lines))
            self._cells.append((number, cell))
            lines += text.split("\n")
        self.text = "\n".join(lines)
        self.parts = self._files = tuple(files)

    def place(self, line: int) -> str:
        """The cell's number among all of the notebook, and the line in it."""
        index = sum(start < line for start in self._starts) - 1
        if index < 0:
            return str(line)
        return f"cell {self._cells[index][0]}:{line - self._starts[index]}"

    def rewritten(self, text: str, *parts: str) -> bytes:
        """The notebook with its code cells changed, and laid out as it was."""
        for file, part in zip(self._files, parts, strict=True):
            file.write(part)
        # What an edit put above the first mark, such as an import, belongs to the first cell.
        before, *texts = re.split(rf"^{_CELL}\n", text, flags=re.MULTILINE)
        for index, ((_, cell), one) in enumerate(zip(self._cells, texts, strict=True)):
            # The newline before the next cell's mark came with the mark.
            last = index == len(texts) - 1
            _put(cell, _restored((before if not index else "") + (one if last else one.removesuffix("\n"))))
        indent = re.match(r"\{\n([ \t]+)", self._json)
        end = "\n" if self._json.endswith("\n") else ""
        # Escaped where the file was: Jupyter writes letters as they are, other tools do not.
        shown = json.dumps(self._content, indent=indent and indent[1], ensure_ascii=self._json.isascii())
        return (shown + end).encode()


def _source(cell: dict[str, Any]) -> str:
    return "".join(cell.get("source", ""))


def _put(cell: dict[str, Any], text: str) -> None:
    """Changes a cell's text, laid out as it was."""
    # A cell that stays the same is not touched: its text may be one string or a list of lines, cut anywhere.
    if text != _source(cell):
        cell["source"] = text if isinstance(cell["source"], str) else text.splitlines(keepends=True)


def read(data: bytes, *, notebook: bool) -> Document:
    """The program in a file.

    Raises:
      ValueError: the encoding is not known, or the notebook is none of format 4, or not one of Python.
      SyntaxError: it is not Python, or so deep that Python cannot read it.
    """
    return Notebook(data) if notebook else Script(data)


def readable(text: str, where: str) -> str:
    """Python, with the lines hidden that are not.

    Args:
      text: a program, or a cell.
      where: says which, before an error's message.

    Raises:
      SyntaxError: it is not Python even without them.
    """
    first = text.lstrip().partition("\n")[0]
    # A cell of another language is kept whole.
    if first.startswith("%%") and (first[2:].split() or [""])[0] not in _OF_PYTHON:
        return "\n".join(f"pass  {HIDDEN}{line}" for line in text.split("\n"))
    # First as it stands: a line of a docstring that ends in `?` looks like one for IPython, and is Python.
    if _problem(text) is None:
        return text
    changed = "\n".join(_hidden(text.split("\n")))
    problem = _problem(changed)
    if problem is not None:
        raise SyntaxError(f"{where}{problem}")
    return changed


def _problem(text: str) -> str | None:
    """Reason why a text is not Python; None if it is."""
    try:
        ast.parse(text)
    except SyntaxError as error:
        return f"{error.msg} (line {error.lineno})"
    except (RecursionError, MemoryError):
        return "it is nested too deeply for Python itself to read it"
    except ValueError as error:  # a null, in Python 3.11
        return str(error)
    return None


def _hidden(lines: Sequence[str]) -> list[str]:
    """Lines with those for IPython hidden, and those on which they go on after a backslash."""
    found: list[str] = []
    goes_on = False
    for line in lines:
        match = _MAGIC.match(line)
        if goes_on:
            found.append(f"pass  {HIDDEN}{line}")
        elif match:
            target = match["target"]
            found.append(f"{match['indent']}{f'{target} = None' if target else 'pass'}  {HIDDEN}{match['text']}")
        else:
            found.append(line)
        goes_on = (goes_on or match is not None) and line.rstrip().endswith("\\")
    return found


def _restored(text: str) -> str:
    return _RESTORED.sub(r"\1\2", text)


def _notebook(text: str) -> dict[str, Any]:
    """The content of a notebook.

    Raises:
      ValueError: it is none of format 4, or not one of Python.
    """
    try:
        content: Any = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply for JSON") from error
    if not isinstance(content, dict) or not isinstance(content.get("cells"), list):
        raise ValueError("it is no notebook of format 4. HINT: convert it with `jupyter nbconvert --to notebook`.")
    metadata: Any = content.get("metadata", {})
    # Some tools write the one, some the other, some neither; without both it counts as Python's.
    language = metadata.get("kernelspec", {}).get("language") or metadata.get("language_info", {}).get("name", "python")
    if language != "python":
        raise ValueError(f"it is a notebook of {language}. HINT: give one of Python.")
    return content
