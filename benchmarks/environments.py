"""Environments of the libraries that are compared with: built on demand from `benchmarks/envs/NAME.txt`.

They lie in `benchmarks/envs/.venvs`, or in the folder that JAXTRIBUTE_BENCH_ENVS names. An environment there is used as
it is if it has what its requirements ask for. `python -m benchmarks environments` builds all. What `NAME.alone` lists
is installed without what it asks for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PLACE = "JAXTRIBUTE_BENCH_ENVS"
REQUIREMENTS = Path(__file__).with_name("envs")
BUILD_DEADLINE_S = 1800.0
_CHECK = """
import sys, importlib.metadata as metadata
for line in sys.argv[1:]:
    name, _, wanted = line.partition("==")
    found = metadata.version(name.split(">")[0]).split("+")[0]
    assert not wanted or found.startswith(wanted.rstrip("*")), f"{name} is {found}"
"""


def names() -> list[str]:
    """The environments that there are requirements for."""
    return sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))


def python_of(name: str) -> str:
    """The interpreter of an environment, which is built where it is missing or lacks something.

    Raises:
      RuntimeError: it cannot be built; with what pip said.
    """
    folder = Path(os.environ.get(PLACE) or REQUIREMENTS / ".venvs").resolve() / name
    python = folder / "bin" / "python"
    if not _has_all(python, name):
        print(f"building the environment {folder} ...", file=sys.stderr, flush=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        install = [str(python), "-m", "pip", "install", "--quiet"]
        _run([*install, "-r", str(REQUIREMENTS / f"{name}.txt")])
        if alone := _listed(f"{name}.alone"):
            _run([*install, "--no-deps", *alone])
    return str(python)


def _listed(file: str) -> list[str]:
    path = REQUIREMENTS / file
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def _has_all(python: Path, name: str) -> bool:
    if not python.exists():
        return False
    done = subprocess.run(
        [str(python), "-c", _CHECK, *_listed(f"{name}.txt"), *_listed(f"{name}.alone")],
        check=False,
        capture_output=True,
        timeout=60,
    )
    return done.returncode == 0


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=BUILD_DEADLINE_S)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
