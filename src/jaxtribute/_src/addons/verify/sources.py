"""The user's lines: where an operation comes from, and what stands there."""

from __future__ import annotations

import inspect
import linecache
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.errors import ConcretizationTypeError, TracerArrayConversionError, TracerIntegerConversionError

import jaxtribute
from jaxtribute._src.addons.tools.installed import is_installed
from jaxtribute.extending import Callers, Function, JaxprEqn, Programs

_LIBRARY = str(Path(jaxtribute.__file__).parent)
_FUNCTIONS = str(Path(jaxtribute.Optimizer.apply_gradients.__code__.co_filename).with_name("losses.py"))
"""The file that reduces the results of functions which an optimizer is given."""
_STANDARD = sysconfig.get_paths()["stdlib"]
_LONGEST = 100
_LAMBDA = (lambda: None).__name__
ASKS = ConcretizationTypeError, TracerArrayConversionError, TracerIntegerConversionError


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a program, or an expression in it.

    Attributes:
      file: the path.
      line: its number, from 1.
      start, end: columns of the expression, from 0; 0 and 0 where they are not known.
      last: the number of its last line.
    """

    file: str
    line: int
    start: int = 0
    end: int = 0
    last: int = 0

    def __str__(self) -> str:
        return f"{self.short}:{self.line}"

    @property
    def short(self) -> str:
        """The path as the user would write it."""
        try:
            return str(Path(self.file).relative_to(Path.cwd()))
        except ValueError:
            return self.file

    @property
    def text(self) -> str:
        """The expression if it is on one line, otherwise the line."""
        line = linecache.getline(self.file, self.line)
        if self.end > self.start and self.last in (0, self.line):
            # Columns count bytes.
            line = line.encode()[self.start : self.end].decode(errors="replace")
        line = line.strip()
        return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."

    @property
    def expression(self) -> str:
        """The expression; empty if it is not known, or too long for a report."""
        known = self.end > self.start and self.last in (0, self.line) and not self.text.endswith("...")
        return self.text if known else ""

    @property
    def whole(self) -> str:
        """The whole line."""
        return linecache.getline(self.file, self.line).strip()


def is_theirs(file: str) -> bool:
    """True for files that are no part of a library."""
    return not (file.startswith((_LIBRARY, "<", _STANDARD)) or is_installed(file))


def place_of(eqn: JaxprEqn) -> Place | None:
    """The innermost line of the user's that made an operation; one of another library's where there is none."""
    return _chosen(map(_place, Programs.user_frames(eqn)))


def innermost(eqn: JaxprEqn) -> tuple[str, int] | None:
    """The innermost line that made an operation, a library's or not."""
    return next(((frame.file_name, frame.start_line) for frame in Programs.user_frames(eqn)), None)


def leaving(eqn: JaxprEqn, other: JaxprEqn, *, inside: bool) -> Place | None:
    """The line of an operation in the innermost function that another one comes from as well.

    Args:
      eqn: the operation.
      other: the other one.
      inside: True for its line in the function that is called there.
    """
    mine, theirs = (list(Programs.user_frames(each))[::-1] for each in (eqn, other))
    common = 0
    for frame, their in zip(mine, theirs, strict=False):
        if (frame.file_name, frame.function_name) != (their.file_name, their.function_name):
            break
        common += 1
        if (frame.start_line, frame.start_column) != (their.start_line, their.start_column):
            break
    own = [frame for frame in mine[:common] if is_theirs(frame.file_name)][-1:]
    called = [frame for frame in mine[common:] if is_theirs(frame.file_name)][:1] if inside else []
    return next((_place(frame) for frame in called or own), None)


def is_called_by_optimizer(eqn: JaxprEqn) -> bool:
    """True for an operation of a function that `apply_gradients` was given, or of what the optimizer makes of one."""
    return any(frame.file_name == _FUNCTIONS for frame in Programs.user_frames(eqn))


def _place(frame: Any) -> Place:
    return Place(frame.file_name, frame.start_line, frame.start_column, frame.end_column, frame.end_line)


def _chosen(places: Iterable[Place]) -> Place | None:
    other: Place | None = None
    for place in places:
        if is_theirs(place.file):
            return place
        if other is None and not place.file.startswith(_LIBRARY):
            other = place
    return other


def calling_place() -> Place:
    """The innermost line of the user's on Python's stack; one of another library's where there is none."""
    frame = here = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and not is_theirs(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None:
        return Place(frame.f_code.co_filename, frame.f_lineno)
    file, _, line = Callers.located(here).rpartition(":")
    return Place(file, int(line))


def title(function: Any, otherwise: str) -> str:
    """The name of a function; of a lambda, which has none of its own, with its file and line."""
    while isinstance(function, partial | Function):
        function = function.func if isinstance(function, partial) else function.python_function
    name = getattr(function, "__name__", otherwise)
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    if name != _LAMBDA or code is None:
        return name
    return f"{name} ({Place(code.co_filename, code.co_firstlineno)})"


def raising(error: Exception) -> str:
    """Says what a user's function has raised, and on which line."""
    places = (Place(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__))
    own = [place for place in places if is_theirs(place.file)]
    where = f"{own[-1]} " if own else ""
    if isinstance(error, ASKS):
        return (
            f"{where}asks for the value of an array, as in `if x > 0` or float(x): a step is verified as it is traced, "
            "where values are not known yet. HINT: use jnp.where or jax.lax.cond, as a jd.function needs them"
        )
    if isinstance(error, AttributeError) and error.name in ("values", "indices") and isinstance(error.obj, jax.Array):
        return (
            f"{where}reads {error.name!r} of an array. To verify a step jd.nn.ShardedTable is made a plain variable, "
            "whose gradient is an array and no jd.IndexedSlices. HINT: clip or scale gradients in the optimizer's "
            "transformation, such as optax.clip_by_global_norm, or verify the step without what it does to their rows"
        )
    what, *_ = str(error).splitlines() or [""]
    return f"{where}raises {type(error).__name__}: {what}"
