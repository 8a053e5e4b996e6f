"""Arrangements of workers and devices that whatever holds for all must hold in, and the table of behaviours there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import value_behaviours  # adds its rows
from behaviours import ROWS, bundles, error_of
from random_programs import Program, check_in_turn
from samples import ALL_CASES
from training_programs import Training, check_training
from worker_programs import strategy

ALONE = ((1, 1), (1, 2), (1, 4))
"""Workers, and devices of each: one process."""
WORKERS = ((2, 1), (2, 2))
"""Clusters of several."""

assert value_behaviours.VALUES


def rows_of(executors: Sequence[str]) -> dict[str, list[str]]:
    """The rows that a cluster goes through with each of these executors: each row takes one, in turn.

    The rows beside it take the others: processes repeat what the strategies of one process do with all.
    """
    found: dict[str, list[str]] = {executor: [] for executor in executors}
    for number, (name, row) in enumerate(ROWS.items()):
        taken = [executor for executor in executors if row.takes(executor)]
        for executor in taken if ALL_CASES or not taken else [taken[number % len(taken)]]:
            found[executor].append(name)
    return found


def table_failures(executors: Sequence[str]) -> list[str]:
    """Goes through the table on a worker of a cluster; returns what fails, each with its row's name.

    After each row, or bundle of rows, the workers tell each other whether they have done it. If only some have, the
    others are behind or ahead in what they exchange, and no further row says anything.
    """
    found: list[str] = []
    for executor, rows in rows_of(executors).items():
        for bundle in bundles(rows):
            if _agreed(executor, bundle, error_of(strategy(), executor, bundle)) == {""}:
                continue
            for name in bundle:
                errors = _agreed(executor, [name], error_of(strategy(), executor, [name]))
                if errors != {""}:
                    found.append(f"{name}, {executor}: {' | '.join(sorted(errors))}")
                if "" in errors and len(errors) > 1:
                    return [*found, "the workers differ; no further row was run"]
    return found


def _agreed(executor: str, names: Sequence[str], error: str) -> set[str]:
    """What all workers tell of rows that they have run."""
    peers = strategy().extended.mesh.peers
    assert peers is not None
    return set(map(json.loads, peers.exchange(f"{executor}: {', '.join(names)}", json.dumps(error))))


def check_program(program: Program) -> None:
    """Compares a random program with what NumPy gives, on a worker of a cluster."""
    check_in_turn(program, strategy())


def check_training_of_workers(training: Training, folder: Path) -> None:
    """Compares a random training with what NumPy gives, on a worker of a cluster."""
    check_training(training, strategy(), folder / "saved")
