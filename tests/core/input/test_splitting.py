"""The cuts: their sizes, and that no row is lost or given twice."""

import itertools
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.core.input.splitting import Shard, cycle_sizes, fill, slice_sizes
from simulated import shards

TABLES = json.loads(Path(__file__).with_name("tf_tables.json").read_text())

counts = st.integers(0, 500)
replica_counts = st.integers(1, 17)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[int, int]:
    """Workers and replicas."""
    workers = draw(st.integers(1, 6))
    return workers, workers * draw(st.integers(1, 5))


@pytest.mark.parametrize(
    ("rows", "replicas", "sizes"),
    [
        (5, 4, (2, 2, 1, 0)),
        (8, 4, (2, 2, 2, 2)),
        (9, 4, (3, 3, 3, 0)),
        (1, 3, (1, 0, 0)),
        (0, 2, (0, 0)),
        (7, 1, (7,)),
    ],
)
def test_slice_sizes(rows: int, replicas: int, sizes: tuple[int, ...]) -> None:
    assert slice_sizes(rows, replicas) == sizes


@given(counts, replica_counts)
def test_slices_take_every_row_once(rows: int, replicas: int) -> None:
    sizes = slice_sizes(rows, replicas)
    assert sum(sizes) == rows
    assert len(sizes) == replicas
    assert list(sizes) == sorted(sizes, reverse=True)
    assert max(sizes) == math.ceil(rows / replicas)


@given(counts, clusters())
def test_workers_bounds_join_up(rows: int, cluster: tuple[int, int]) -> None:
    workers, replicas = cluster
    bounds = [shard.bounds(rows) for shard in shards(workers, replicas)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == rows
    assert all(before[1] == after[0] for before, after in itertools.pairwise(bounds))


@given(counts, clusters())
def test_workers_bounds_are_those_of_their_replicas(rows: int, cluster: tuple[int, int]) -> None:
    sizes = slice_sizes(rows, cluster[1])
    for shard in shards(*cluster):
        start, stop = shard.bounds(rows)
        assert start == sum(sizes[: shard.first])
        assert stop - start == sum(sizes[shard.first : shard.first + shard.local])


@given(st.integers(1, 500), clusters())
def test_cycles_use_up_the_batch_and_add_up_in_each_step(rows: int, cluster: tuple[int, int]) -> None:
    workers, replicas = cluster
    cycles = [cycle_sizes(rows, shard) for shard in shards(workers, replicas)]
    local = replicas // workers
    for cycle in cycles:
        assert sum(cycle) == rows
        assert max(cycle) - min(cycle) <= 1
    for step in range(workers):
        assert sum(sum(cycle[step * local : (step + 1) * local]) for cycle in cycles) == rows


@pytest.mark.parametrize("row", TABLES["over_workers"], ids=str)
def test_cycles_are_those_of_tensorflow(row: dict[str, list[list[list[int]]]]) -> None:
    workers, replicas, batch = (int(str(row[key])) for key in ("workers", "replicas", "batch"))
    for shard, slices in zip(shards(workers, replicas), row["file"], strict=True):
        cycle = cycle_sizes(batch, shard)
        for number, size in enumerate(map(len, slices[:-1])):
            assert size == cycle[number % len(cycle)]


@given(counts, st.lists(st.integers(0, 20), max_size=10))
def test_fill_gives_out_what_there_is(rows: int, sizes: list[int]) -> None:
    given_out = fill(rows, sizes)
    assert sum(given_out) == min(rows, sum(sizes))
    assert all(got <= size for got, size in zip(given_out, sizes, strict=True))


def test_a_shard_knows_its_replicas() -> None:
    assert [(shard.first, shard.local) for shard in shards(3, 6)] == [(0, 2), (2, 2), (4, 2)]
    assert Shard() == Shard(1, 0, 1)
