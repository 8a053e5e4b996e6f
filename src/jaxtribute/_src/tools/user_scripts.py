"""Running a user's script until enough of its steps have been seen, without the script's knowledge."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxtribute._src.execution.program import Program
from jaxtribute._src.observers import DISPATCH, INPUT, Event
from jaxtribute.errors import ArgumentError

STEPS_AND_INPUT = DISPATCH.name, INPUT.name
"""The kinds of events of which a training loop consists."""


class Finished(BaseException):
    """Ends a script that has shown what was to be seen; no `except Exception` of the script's catches it."""


class Dispatch:
    """A training step that is about to be given to the devices: a call of a program that changes state.

    Attributes:
      program: the compiled program.
      leaves: the arrays of its arguments.
      call: runs the step, and returns its result.
    """

    def __init__(self, program: Program, leaves: Sequence[object], call: Callable[[], object]) -> None:
        self.program, self.leaves, self.call = program, leaves, call


def training_step(event: Event) -> Dispatch | None:
    """Returns the training step that an event is of; None for other events.

    State is variables, or arguments of `donate_argnums`. Programs that change nothing, such as an evaluation, are no
    steps.
    """
    program = event.subject
    if (
        event.kind != DISPATCH.name
        or not isinstance(program, Program)
        or not (program.donated or program.donated_leaves)
    ):
        return None
    return Dispatch(program, event.arguments[0], lambda: program(*event.arguments))


def run_script(script: Path, arguments: Sequence[str]) -> bool:
    """Runs a Python program as `python SCRIPT ARGUMENTS` would, in this process.

    Returns:
      True if it was ended by `Finished`.

    Raises:
      ArgumentError: there is no such file.
      Exception: what the script raises; SystemExit other than 0 too.
    """
    if not script.is_file():
        raise ArgumentError(f"there is no script {str(script)!r}. HINT: give the path of a Python program.")
    # A script sees what it would see as `python SCRIPT`: its arguments, and its own directory first.
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
