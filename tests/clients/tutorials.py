"""TensorFlow's tutorials of `tf.distribute`, migrated and run, and compared with TensorFlow where it runs them.

    python tests/clients/tutorials.py FOLDER [--tensorflow PYTHON] [--only keras input] [--work DIR]

FOLDER holds the notebooks of TensorFlow's documentation: those of `site/en/tutorials/distribute` and
`site/en/guide/distributed_training.ipynb`. Each is made shorter (fewer epochs and steps, ports that are free, files
below DIR), rewritten by `jaxtribute migrate --write`, changed in the lines of `BY_HAND`, and run cell by cell on two
CPU devices, on digits. PYTHON is an interpreter that has TensorFlow 2.21 and scikit-learn: it runs the original, with
the lines of `FOR_KERAS_3`, which Keras 3 takes under TensorFlow as well.

For each notebook the table says how many lines were changed by hand, how many cells ran here and there, what `migrate`
says cannot run, and the largest difference between the numbers that the cells show.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SUPPORT = Path(__file__).resolve().parents[1] / "support"
sys.path.insert(0, str(_SUPPORT))

from processes import free_ports  # noqa: E402 (once it can be found)

NOTEBOOKS = (
    "keras",
    "custom_training",
    "input",
    "multi_worker_with_keras",
    "multi_worker_with_ctl",
    "parameter_server_training",
    "save_and_load",
    "distributed_training",
)
_RUNNER = Path(__file__).with_name("tutorial_cells.py")
_LIMIT_S = 900

SHORTER = (
    (r"\bEPOCHS = \d+", "EPOCHS = 2"),
    (r"steps_per_epoch=70", "steps_per_epoch=4"),
    (r"steps_per_epoch=20", "steps_per_epoch=3"),
    (r"num_steps_per_epoch ?= ?70", "num_steps_per_epoch = 4"),
    (r"save_freq=30", "save_freq=3"),
    (r"for _ in range\(10\)", "for _ in range(2)"),
    (r"num_epochs = 10", "num_epochs = 2"),
    (r"time\.sleep\(\d+\)", "time.sleep(1)"),
)
"""What makes a tutorial shorter, here and there."""

FOR_KERAS_3 = (
    (r"\.reset_states\(", ".reset_state("),
    (r"optimizers\.legacy\.", "optimizers."),
)
"""Names that Keras 3 has dropped, for TensorFlow as well."""

_ALIASED = """jd.config.alias_devices({"GPU:0": "CPU:0", "GPU:1": "CPU:1"})
mirrored_strategy = tf.distribute.MirroredStrategy(devices=["/gpu:0", "/gpu:1"])"""

BY_HAND: dict[str, tuple[tuple[str, str], ...]] = {
    "custom_training": (
        ("  model = tf.keras.Sequential([", "  model = tf.keras.Sequential([tf.keras.Input((28, 28, 1)),"),
    ),
    "multi_worker_with_keras": (("/keras-model'", "/keras-model.keras'"),),
    "parameter_server_training": (("y = tf.random.uniform((10,))", "y = tf.random.uniform((10, 1))"),),
    "distributed_training": (
        (
            'mirrored_strategy = tf.distribute.MirroredStrategy(devices=["/gpu:0", "/gpu:1"])',
            _ALIASED,
        ),
    ),
}
"""Lines changed by hand after `migrate`."""

ON_ONE_DEVICE = {
    "custom_training": (
        ("BATCH_SIZE_PER_REPLICA = 64", "BATCH_SIZE_PER_REPLICA = 128"),
        ("format(strategy.num_replicas_in_sync)", "format(2)"),
    ),
}
"""Notebooks that TensorFlow 2.21 runs on one CPU: on two, `MirroredStrategy` fails at times in Keras 3's optimizer.
There these texts change, so that batches are as large, and the cells show as many devices, as on two."""

ALSO_BY_TENSORFLOW = ("custom_training", "multi_worker_with_keras")
"""Notebooks whose lines TensorFlow 2.21 needs, or takes, too."""


@dataclass
class Outcome:
    """What came of a notebook in one library."""

    cells: list[dict[str, Any]] = field(default_factory=list)
    log: str = ""

    def ran(self) -> list[dict[str, Any]]:
        """The cells that ended without an error."""
        return [cell for cell in self.cells if not cell["error"]]


def shorter(text: str, folder: Path, ports: Sequence[int]) -> str:
    """A notebook's text with fewer steps, and with ports and files that no other program uses."""
    for pattern, with_ in SHORTER:
        text = re.sub(pattern, with_, text)
    text = text.replace("localhost:12345", f"localhost:{ports[0]}").replace("localhost:23456", f"localhost:{ports[1]}")
    return text.replace("'/tmp/", f"'{folder}/").replace('\\"/tmp/', f'\\"{folder}/')


def by_hand(name: str, file: Path) -> int:
    """Changes the lines that are changed by hand; returns their number."""
    text = file.read_text()
    for line, with_ in BY_HAND.get(name, ()):
        old, new = json.dumps(line)[1:-1], json.dumps(with_)[1:-1]
        if old not in text:
            raise LookupError(f"{name}: there is no line {line!r} to change by hand")
        text = text.replace(old, new)
    file.write_text(text)
    return len(BY_HAND.get(name, ()))


def run(interpreter: str, notebook: Path, folder: Path, devices: int = 2) -> Outcome:
    """Runs a notebook's cells in a folder of its own, on so many CPU devices."""
    programs = folder / "bin"
    programs.mkdir()
    python = programs / "python"
    python.write_text(f'#!/bin/sh\nexec "{interpreter}" "{_RUNNER}" --script "$@"\n')
    python.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "JAXTRIBUTE_CPU_DEVICES": str(devices),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TMPDIR": str(folder),
    }
    found, log = folder / "found.json", folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [interpreter, str(_RUNNER), str(notebook), "--found", str(found)],
            cwd=folder,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    cells = json.loads(found.read_text()) if found.exists() else []
    return Outcome(cells, log.read_text(errors="replace"))


def migrate(notebook: Path) -> str:
    """Rewrites a notebook; returns what is left, as `jaxtribute migrate` says it."""
    command = [sys.executable, "-m", "jaxtribute.cli", "migrate", "--write", str(notebook)]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout


def difference(ours: Outcome, theirs: Outcome) -> tuple[int, float, list[int]]:
    """How many numbers both have shown, their largest difference, and the cells that show other numbers of them."""
    shown, largest, apart = 0, 0.0, list[int]()
    known = {cell["cell"]: cell for cell in theirs.ran()}
    for cell in ours.ran():
        other = known.get(cell["cell"])
        if other is None:
            continue
        if len(other["numbers"]) != len(cell["numbers"]):
            apart.append(cell["cell"])
            continue
        for here, there in zip(cell["numbers"], other["numbers"], strict=True):
            shown += 1
            largest = max(largest, abs(here - there) / max(1.0, abs(there)))
    return shown, largest, apart


def tutorial(name: str, source: Path, work: Path, tensorflow: str | None) -> str:
    """Migrates and runs one notebook; returns its row of the table, and prints what failed."""
    outcomes: list[Outcome] = []
    lines = 0
    left = ""
    for library, interpreter in (("ours", sys.executable), ("theirs", tensorflow)):
        if interpreter is None:
            continue
        folder = work / name / library
        folder.mkdir(parents=True)
        notebook = folder / source.name
        text = shorter(source.read_text(), folder, free_ports(2))
        if library == "theirs":
            for pattern, with_ in FOR_KERAS_3:
                text = re.sub(pattern, with_, text)
            for old, new in ON_ONE_DEVICE.get(name, ()):
                text = text.replace(old, new)
        notebook.write_text(text)
        if library == "ours":
            left = migrate(notebook)
            (folder / "migrate.txt").write_text(left)
        if library == "ours" or name in ALSO_BY_TENSORFLOW:
            lines = by_hand(name, notebook)
        devices = 1 if library == "theirs" and name in ON_ONE_DEVICE else 2
        outcomes.append(run(interpreter, notebook, folder, devices))
        for cell in outcomes[-1].cells:
            if cell["error"]:
                print(f"{name}, cell {cell['cell']}, {library}: {cell['error'][:300]}", flush=True)
    ours, *others = outcomes
    saved = len(set(re.findall(r"(cell \d+):\S+ absent: tf\.saved_model", left)))
    row = f"| {name} | {lines} | {len(ours.ran())} of {len(ours.cells)} | {saved} |"
    if not others:
        return row
    shown, largest, apart = difference(ours, others[0])
    row += f" {len(others[0].ran())} of {len(others[0].cells)} | {shown} | {largest:.1e} |"
    return row + (f" cells {apart} show other numbers of values |" if apart else " |")


def main() -> None:
    """Runs the notebooks that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tensorflow", help="an interpreter with TensorFlow 2.21")
    parser.add_argument("--only", nargs="*", default=NOTEBOOKS, choices=NOTEBOOKS)
    parser.add_argument("--work", type=Path, help="where to run; by default a folder that is made for it")
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(dir=arguments.work)) if arguments.work else Path(tempfile.mkdtemp())
    print(f"logs and notebooks: {work}", flush=True)
    rows = []
    for name in arguments.only:
        rows.append(tutorial(name, arguments.folder / f"{name}.ipynb", work, arguments.tensorflow))
        print(rows[-1], flush=True)
    print("\n| notebook | lines by hand | cells run | cells with SavedModel", end="")
    if arguments.tensorflow:
        print(
            " | cells run by TensorFlow | numbers | largest difference | remarks |\n|---|---|---|---|---|---|---|---|"
        )
    else:
        print(" |\n|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
