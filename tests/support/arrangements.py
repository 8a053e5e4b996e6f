"""Arrangements of workers and devices that whatever holds for all must hold in, and the table of behaviours there."""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence

import jaxtribute as jd
import value_behaviours  # adds its rows
from behaviours import EXECUTORS, ROWS, check_row
from worker_programs import strategy

ALONE = ((1, 1), (1, 2), (1, 4))
"""Workers, and devices of each: one process."""
WORKERS = ((2, 1), (2, 2))
"""Clusters of several."""

assert value_behaviours.VALUES


def table_failures(rows: Sequence[str] = (), executors: Sequence[str] = EXECUTORS) -> list[str]:
    """Goes through the table on a worker of a cluster; returns what fails, each with its row's name.

    After each row the workers tell each other whether they have done it. If only some have, the others are behind
    or ahead in what they exchange, and no further row says anything.

    Args:
      rows: the names of rows; by default all.
      executors: the executors.
    """
    found: list[str] = []
    for executor in executors:
        for name in rows or ROWS:
            if not ROWS[name].takes(executor):
                continue
            error = _error(strategy(), executor, name)
            if error:
                found.append(f"{name}, {executor}: {error}")
            peers = strategy().extended.mesh.peers
            assert peers is not None
            if len(set(map(bool, map(json.loads, peers.exchange(f"after {name}, {executor}", json.dumps(error)))))) > 1:
                return [*found, f"the workers differ in {name}, {executor}; no further row was run"]
    return found


def _error(strategy: jd.Strategy, executor: str, name: str) -> str:
    try:
        check_row(strategy, executor, ROWS[name])
    except Exception as error:  # noqa: BLE001 (all rows are run, and each failure is told)
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {where.filename.rsplit('/', 1)[-1]}:{where.lineno}: {error}"
    return ""
