"""Arrangements of workers and devices that whatever holds for all must hold in, and the table of behaviours there."""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence

import jax

import value_behaviours  # adds its rows
from behaviours import EXECUTORS, ROWS, check_rows, is_compiled
from random_programs import Program, check_in_turn
from worker_programs import strategy

ALONE = ((1, 1), (1, 2), (1, 4))
"""Workers, and devices of each: one process."""
WORKERS = ((2, 1), (2, 2))
"""Clusters of several."""

assert value_behaviours.VALUES


def table_failures(rows: Sequence[str] = (), executors: Sequence[str] = EXECUTORS) -> list[str]:
    """Goes through the table on a worker of a cluster; returns what fails, each with its row's name.

    After each row, or bundle of rows, the workers tell each other whether they have done it. If only some have, the
    others are behind or ahead in what they exchange, and no further row says anything.

    Args:
      rows: the names of rows; by default all.
      executors: the executors.
    """
    jax.config.update("jax_disable_most_optimizations", True)
    found: list[str] = []
    for executor in executors:
        names = [name for name in rows or ROWS if ROWS[name].takes(executor)]
        size = BUNDLE if is_compiled(executor) else 1
        for start in range(0, len(names), size):
            bundle = names[start : start + size]
            # Most of the time goes to compiling, which one program of many rows needs less of. One that fails says not
            # which row it is.
            if size > 1 and _agree(f"{executor}, {bundle}", not _error(executor, bundle)) == {True}:
                continue
            for name in bundle:
                error = _error(executor, [name])
                if error:
                    found.append(f"{name}, {executor}: {error}")
                if len(_agree(f"{executor}, {name}", not error)) > 1:
                    return [*found, f"the workers differ in {name}, {executor}; no further row was run"]
    return found


BUNDLE = 12
"""Number of rows that one program does together."""


def _agree(what: str, done: bool) -> set[bool]:
    peers = strategy().extended.mesh.peers
    assert peers is not None
    return set(map(json.loads, peers.exchange(what, json.dumps(done))))


def _error(executor: str, names: Sequence[str]) -> str:
    try:
        check_rows(strategy(), executor, [ROWS[name] for name in names])
    except Exception as error:  # noqa: BLE001 (all rows are run, and each failure is told)
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {where.filename.rsplit('/', 1)[-1]}:{where.lineno}: {error}"
    return ""


def check_program(program: Program) -> None:
    """Compares a random program with what NumPy gives, on a worker of a cluster."""
    check_in_turn(program, strategy())
