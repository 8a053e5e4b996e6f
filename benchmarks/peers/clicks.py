"""A model of clicks that all peers of embeddings train: 26 features look rows up in one table, a dense layer behind.

Few ids come often, as in a log of clicks; each feature has its own part of the table.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

FEATURES, BATCH, BATCHES = 26, 1024, 4
RATE, EPSILON = 0.05, 1e-8
"""Of Adagrad, whose accumulators begin at 0, as PyTorch's do."""


@dataclass
class Asked:
    """What a peer is to measure."""

    rows: int
    width: int
    contenders: list[str]


def parse() -> Asked:
    """The command line of this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--contender", action="append", required=True)
    given = parser.parse_args()
    return Asked(given.rows, given.width, given.contender)


def batches(rows: int, rank: int, ranks: int) -> list[tuple[Any, Any]]:
    """The ids, of shape `(batch, FEATURES)`, and the clicks of one worker's batches.

    Larger tables have the same ids further apart, so that steps have as many rows.
    """
    rng = np.random.default_rng(rank)
    found: list[tuple[Any, Any]] = []
    own = min(rows, 1_000_000) // FEATURES
    for _ in range(BATCHES):
        ids = rng.zipf(1.1, (BATCH // ranks, FEATURES)) % own + np.arange(FEATURES) * own
        ids *= max(1, rows // 1_000_000)
        found.append((ids.astype(np.int32), rng.integers(0, 2, BATCH // ranks).astype(np.float32)))
    return found


def first_rows(asked: Asked) -> Any:
    """The table as it begins."""
    return np.random.default_rng(0).normal(scale=0.05, size=(asked.rows, asked.width)).astype(np.float32)


def first_dense(asked: Asked) -> Any:
    """The dense layer as it begins."""
    return np.full(FEATURES * asked.width, 0.01, np.float32)
