"""Running a user's script with an eye on its steps, without the script's knowledge."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from jaxtribute._src.execution.program import Program
from jaxtribute.errors import ArgumentError


class Finished(BaseException):
    """Ends a script that has shown what was to be seen; no `except Exception` of the script's catches it."""


class Watcher(Protocol):
    """Functions that look on."""

    def step(self, program: Program, leaves: Sequence[Any], call: Callable[[], Any]) -> Any:
        """Is asked to run a compiled step, by `call`, and returns its result."""
        ...

    def draw(self, call: Callable[[], Any]) -> Any:
        """Is asked to take the next element from a distributed iterator, by `call`, and returns it."""
        ...


@contextmanager
def watched(watcher: Watcher) -> Generator[None]:
    """Shows `watcher` every call of a compiled program that changes state, and every batch that is drawn.

    State is variables, or arguments of `donate_argnums`. Programs that change nothing, such as an evaluation, are let
    through. Nothing is added to any call outside.
    """
    from jaxtribute._src.input.iterator import DistributedIterator

    run: Any = Program.__call__
    advance: Any = vars(DistributedIterator)["_advance"]

    def step(program: Program, leaves: Sequence[Any], within: Any = None) -> Any:
        if not program.donated and not program.donated_leaves:
            return run(program, leaves, within)
        return watcher.step(program, leaves, lambda: run(program, leaves, within))

    def draw(iterator: DistributedIterator) -> Any:
        return watcher.draw(lambda: advance(iterator))

    setattr(Program, "__call__", step)  # noqa: B010
    setattr(DistributedIterator, "_advance", draw)  # noqa: B010
    try:
        yield
    finally:
        setattr(Program, "__call__", run)  # noqa: B010
        setattr(DistributedIterator, "_advance", advance)  # noqa: B010


def run_script(script: Path, arguments: Sequence[str]) -> bool:
    """Runs a Python program as `python SCRIPT ARGUMENTS` would, in this process.

    Returns:
      Whether it was ended by `Finished`.

    Raises:
      ArgumentError: there is no such file.
      Exception: what the script raises; SystemExit other than 0 too.
    """
    if not script.is_file():
        raise ArgumentError(f"there is no script {str(script)!r}. HINT: give the path of a Python program.")
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except Finished:
        return True
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    finally:
        sys.argv, sys.path[:] = argv, path
    return False
