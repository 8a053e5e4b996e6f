"""What an editor shows: the types of a user's program, as pyright sees them without our own stubs."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "support" / "typed_script.py"
ARRAY = "Array"
RESULT = "PerReplica[Array] | Mirrored | Array"
BATCH = "tuple[PerReplica[Array] | Array, ...]"
HOST = "ndarray[tuple[Any, ...], dtype[Any]]"  # as NumPy itself declares its random numbers
TYPES = {
    "strategy": "MirroredStrategy",
    "x": HOST,
    "rows": f"RowDataset[tuple[{HOST}, {HOST}]]",
    "batched": f"RowDataset[tuple[{HOST}, {HOST}]]",
    "batches": f"DistributedDataset[{BATCH}]",
    "model": "Model[dict[str, Array]]",
    "count": "Variable",
    "w": "Variable",
    "optimizer": "Optimizer",
    "weights": "dict[str, Array]",
    "product": ARRAY,
    "scaled": ARRAY,
    "first": ARRAY,
    "total": ARRAY,
    "held": ARRAY,
    "copies": "tuple[Array, ...]",
    "residual": ARRAY,
    "value": ARRAY,
    "both": "tuple[Array, list[Array]]",
    "context": "ReplicaContext | None",
    "counted": ARRAY,
    "seen": "Variable",
    "results": f"tuple[{RESULT}, ...]",
    "losses": RESULT,
    "examples": RESULT,
    "batch": BATCH,
    "inputs": "PerReplica[Array] | Array",
    "targets": "PerReplica[Array] | Array",
    "step_loss": ARRAY,
    "number": "float",
    "means": RESULT,
    "mean": ARRAY,
    "parts": "tuple[Array, ...]",
    "gathered": ARRAY,
    "named": f"dict[str, {RESULT}]",
    "sums": "dict[str, Array]",
    "shape": "tuple[int, ...]",
    "iterator": f"DistributedIterator[{BATCH}]",
    "element": BATCH,
}
"""The type of each name that the program binds."""


def revealed(source: str) -> str:
    """The program with a `reveal_type` behind each line that binds names."""
    lines = source.splitlines()
    asked: dict[int, list[str]] = {}
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Assign, ast.For))]
    for node in nodes:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for name in (part for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)):
            indent = node.col_offset + (4 if isinstance(node, ast.For) else 0)
            line = node.lineno if isinstance(node, ast.For) else node.end_lineno or node.lineno
            asked.setdefault(line, []).append(" " * indent + f"reveal_type({name.id})")
    return "\n".join(text for number, line in enumerate(lines, 1) for text in (line, *asked.get(number, ()))) + "\n"


def pyright(*arguments: str, folder: Path) -> str:
    """What pyright says in a folder without our settings and stubs, as a user's editor does."""
    scripts = str(Path(sys.executable).parent)  # `--verifytypes` looks for the package in the first Python on the path
    environment = {**os.environ, "PATH": os.pathsep.join([scripts, os.environ["PATH"]])}
    command = [f"{scripts}/pyright", "--outputjson", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, timeout=300, check=False
    ).stdout


@pytest.mark.slow
def test_the_types_of_a_users_program_are_known(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(revealed(SCRIPT.read_text(encoding="utf-8")))
    said = json.loads(pyright("--pythonpath", sys.executable, str(program), folder=tmp_path))["generalDiagnostics"]
    assert [one for one in said if one["severity"] != "information"] == []
    found = {one["message"].split('"')[1]: one["message"].split('"')[3] for one in said}
    assert found == TYPES
    assert not [name for name, kind in found.items() if "Unknown" in kind or "Any" in kind.replace(HOST, "")]


@pytest.mark.slow
def test_the_types_of_public_names_are_known(tmp_path: Path) -> None:
    report = json.loads(pyright("--verifytypes", "jaxtribute", "--ignoreexternal", folder=tmp_path))
    unknown = [
        one["name"] for one in report["typeCompleteness"]["symbols"] if one["isExported"] and not one["isTypeKnown"]
    ]
    assert report["typeCompleteness"]["completenessScore"] >= 0.95, unknown
