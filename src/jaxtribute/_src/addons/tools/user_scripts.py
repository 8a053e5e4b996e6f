"""Running a user's script: here, until enough of its steps have been seen; or in a process that answers.

The script knows of neither.
"""

from __future__ import annotations

import importlib.util
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import IO, Any

from jaxtribute._src.addons.launcher.family import Family
from jaxtribute._src.addons.tools.installed import is_installed
from jaxtribute._src.addons.tools.script_settings import settings_heard
from jaxtribute._src.addons.tools.waiting import MARK
from jaxtribute.errors import ArgumentError, DeadlineError, ProcessFailedError
from jaxtribute.experimental import Event
from jaxtribute.extending import Kinds, Program

STEPS_AND_INPUT = Kinds.DISPATCH.name, Kinds.INPUT.name
"""The kinds of events of which a training loop consists."""
DEADLINE_S = 300.0
_END_S = 10.0
_POOL = ("PJRT_NPROC", "JAXTRIBUTE_PJRT_NPROC")


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
        event.kind != Kinds.DISPATCH.name
        or not isinstance(program, Program)
        or not (program.donated or program.donated_leaves)
    ):
        return None
    return Dispatch(program, event.arguments[0], lambda: program(*event.arguments))


def check_program(script: Path, *, module: bool = False) -> str:
    """Looks for a program, and returns its file.

    Args:
      script: its path, or the name of a module.
      module: whether it is a module, as in `python -m`.

    Raises:
      ArgumentError: there is no such program, or it is a notebook.
    """
    if module:
        with _folder_first(Path.cwd()):
            try:
                spec = importlib.util.find_spec(str(script))
                if spec is not None and spec.submodule_search_locations is not None:
                    spec = importlib.util.find_spec(f"{script}.__main__")
            except (ImportError, ValueError):
                spec = None
        if spec is None or spec.origin is None:
            raise ArgumentError(
                f"there is no module {str(script)!r} that runs from {Path.cwd()}. HINT: -m takes a name as `python -m` "
                "does, such as package.train; a path stands without -m."
            )
        return spec.origin
    if not script.is_file():
        raise ArgumentError(f"there is no script {str(script)!r}. HINT: give the path of a Python program.")
    if script.suffix == ".ipynb":
        raise ArgumentError(
            f"{script} is a notebook, and no Python program. HINT: export it with `jupyter nbconvert --to script "
            f"{script}`, and give what comes of it."
        )
    return str(script)


def run_script(script: Path, arguments: Sequence[str], *, module: bool = False) -> bool:
    """Runs a Python program as `python SCRIPT ARGUMENTS` would, in this process.

    Args:
      script: the program.
      arguments: its arguments.
      module: whether it is the name of a module, as in `python -m`.

    Returns:
      True if it was ended by `Finished`.

    Raises:
      ArgumentError: there is no such program.
      Exception: what the script raises; SystemExit other than 0 too.
    """
    file = check_program(script, module=module)
    # A script sees what it would see as `python SCRIPT`: its arguments, and its own directory first.
    argv = sys.argv
    sys.argv = [file, *arguments]
    try:
        with _folder_first(Path.cwd() if module else script.resolve().parent), settings_heard():
            if module:
                runpy.run_module(str(script), run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(str(script), run_name="__main__")
    except Finished:
        return True
    # A script may end by `sys.exit(0)` as well as by its last line.
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    finally:
        sys.argv = argv
    return False


@contextmanager
def _folder_first(folder: Path) -> Generator[None]:
    """Lets modules be looked for in a folder first, until the block ends."""
    path = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = path


def modules_beside(script: Path) -> dict[str, Path]:
    """Names and files of the loaded modules in a script's folder and below; what is installed there is none."""
    folder, found = script.resolve().parent, dict[str, Path]()
    # A program's environment often lies in its own folder.
    environments = [one for one in (Path(sys.prefix), Path(sys.base_prefix)) if one.is_relative_to(folder)]
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "/")
        if name == "__main__" or not file.is_relative_to(folder) or any(map(file.is_relative_to, environments)):
            continue
        if not is_installed(str(file)):
            found[name] = file
    return found


def with_devices(arguments: Sequence[str], devices: int) -> list[str]:
    """The script's arguments with the number of devices where `{devices}` stands."""
    return [argument.replace("{devices}", str(devices)) for argument in arguments]


def run_module(
    module: str,
    arguments: Sequence[str],
    devices: int,
    workers: int = 1,
    *,
    script: Path,
    settings: Mapping[str, str] | None = None,
    deadline_s: float = DEADLINE_S,
) -> dict[str, Any]:
    """Runs a module, which runs a script, on so many CPU devices if there is no accelerator; returns what it answers.

    Args:
      module: its last line of output is the answer, in JSON.
      arguments: what follows its name.
      devices: devices of each process.
      workers: processes that form a cluster; the first one's answer counts.
      script: the user's program, which messages name.
      settings: further variables of the environment.
      deadline_s: seconds after which it is ended.

    Raises:
      DeadlineError: it does not end in time.
      ProcessFailedError: it fails.
    """
    environment = os.environ | {"JAXTRIBUTE_CPU_DEVICES": str(devices)} | dict(settings or {})
    # It is to see this machine alone, and to size its thread pool for its own number of devices.
    for name in ("TF_CONFIG", *_POOL):
        environment.pop(name, None)
    launcher = ["jaxtribute.cli", "launch", "--workers", str(workers), "-m"] if workers > 1 else []
    command = [sys.executable, "-m", *launcher, module, *arguments]
    # Nothing that the script starts outlives this, nor this process, and nothing waits for an answer of the user's.
    with Family() as family:
        process = family.start(command, environment, subprocess.PIPE, subprocess.PIPE)
        stream, process.stderr = process.stderr, None
        assert stream is not None
        errors: list[str] = []
        reader = Thread(target=_follow, args=(stream, errors), daemon=True)
        reader.start()
        try:
            output = process.communicate(timeout=deadline_s)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:
            raise DeadlineError(
                f"{script} on {devices} devices has not ended in {deadline_s:.0f} s. HINT: plan a smaller step."
            ) from None
        finally:
            if process.stdout is not None:
                process.stdout.close()
    # All that could write has ended.
    reader.join(_END_S)
    if process.returncode == -signal.SIGKILL:
        raise ProcessFailedError(
            f"{script} was killed on {devices} devices, most likely because this "
            "machine has too little memory for it. HINT: jaxtribute plan --shapes gives variables no memory; the other "
            "commands need a smaller model."
        )
    if process.returncode:
        raise ProcessFailedError(
            f"{script} on {devices} devices ended with {process.returncode}. HINT: run the script by itself first. It "
            f"printed:\n{output}{''.join(errors)}"
        )
    # The script prints what it likes; the answer comes last. The launcher marks the lines of rank 0.
    lines = [line.removeprefix("[0] ") for line in output.splitlines()]
    return json.loads([line for line in lines if line.startswith("{")][-1])


def _follow(stream: IO[bytes], errors: list[str]) -> None:
    """Keeps what a process writes on standard error, and passes on what it says of its progress."""
    with stream:
        for line in stream:
            errors.append(line.decode(errors="replace"))
            if errors[-1].startswith(MARK):
                sys.stderr.write(errors[-1])
                sys.stderr.flush()
