"""Plans the step of programs for TPUs that are not there, each in a process forked from one that has imported a lot.

    python tests/support/planned_programs.py TOPOLOGY FILE...

A Markdown page is the program that its blocks of Python make together. Each line of output is JSON: `name`, and why
the program is `refused`, empty if it is planned. What else a program raises ends this with its traceback.
"""

from __future__ import annotations

import doctest
import importlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from documents import blocks

os.environ.setdefault("KERAS_BACKEND", "jax")
COMMON = "jaxtribute.compat.tf", "jaxtribute._src.addons.compiling.targets", "sklearn.datasets", "keras", "flax.nnx"
"""What many of them import: reading it takes longer than most of them."""


def program_of(page: Path, folder: Path) -> Path:
    """A file with the code of a page, without what is to raise an error."""
    parts: list[str] = []
    for _, kind, code in blocks(page.read_text(encoding="utf-8")):
        if kind == "python":
            parts.append(code)
        else:
            parts += [one.source for one in doctest.DocTestParser().get_examples(code) if one.exc_msg is None]
    program = folder / f"{page.stem}.py"
    program.write_text("\n".join(parts), encoding="utf-8")
    return program


def refusal(program: Path, topology: str) -> str:
    """Why a program cannot be planned; empty if it can.

    Raises:
        Exception: Whatever it raises that is no refusal of the library's with a hint.
    """
    targets: Any = importlib.import_module("jaxtribute._src.addons.compiling.targets")
    topologies: Any = importlib.import_module("jaxtribute._src.addons.compiling.topologies")
    errors: Any = importlib.import_module("jaxtribute.errors")
    try:
        found = targets.compile_script(program, [], topologies.topology_named(topology), lambda _: None)
    except errors.JaxtributeError as error:
        if "HINT: " not in str(error):
            raise
        return f"{type(error).__name__}: {error}"
    assert found.estimate > 0, program
    assert str(found), program
    return ""


def planned(files: Sequence[Path], topology: str) -> int:
    """Plans each in a process of its own; returns how many raised what is no refusal."""
    for name in COMMON:
        if find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    failed, answers = 0, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what programs print goes where errors go
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            program = file if file.suffix == ".py" else program_of(file, Path(folder))
            child = os.fork()
            if child == 0:
                why = refusal(program, topology)
                answers.write(json.dumps({"name": file.name, "refused": why}) + "\n")
                answers.flush()
                os._exit(0)
            failed += os.waitpid(child, 0)[1] != 0
    return failed


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    sys.exit(planned([Path(name) for name in sys.argv[2:]], sys.argv[1]))
