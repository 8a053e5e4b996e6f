"""The report on who reads what, against what is then read."""

from collections import UserList
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxtribute._src.core.values.mesh import ReplicaMesh
from jaxtribute.input import (
    AutoShardPolicy,
    Explanation,
    InputContext,
    InputOptions,
    TextLineSource,
    distribute_dataset,
    make_numpy_dataset,
    shard_hint,
)
from simulated import Meeting, drain, on_workers, rows_of, steps_of


def explain(dataset: Any, workers: int, replicas: int, policy: AutoShardPolicy | None = None) -> Explanation:
    mesh = ReplicaMesh(jax.devices()[:replicas])
    options = InputOptions(auto_shard_policy=policy)
    return distribute_dataset(dataset, mesh, options, InputContext(workers, 0, replicas)).explain()


def text(folder: Path, sizes: list[int]) -> Any:
    paths = [folder / f"part-{number}" for number in range(len(sizes))]
    for path, size in zip(paths, sizes, strict=True):
        path.write_text("7\n" * size)
    return grain.MapDataset.source(TextLineSource(paths)).map(int).batch(2)


def test_it_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    explain(make_numpy_dataset(np.arange(10)).batch(4, drop_remainder=True), 2, 4, AutoShardPolicy.DATA)
    printed = capsys.readouterr().out
    assert "sharded by DATA: it was asked for" in printed
    assert "0-1" in printed
    assert "2:4" in printed
    assert "left over: 2" in printed


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 3), st.integers(1, 2), st.booleans())
def test_it_tells_what_is_delivered(
    capsys: pytest.CaptureFixture[str], examples: int, batch: int, workers: int, local: int, drop: bool
) -> None:
    replicas = workers * local

    def dataset() -> Any:
        return make_numpy_dataset(np.arange(examples)).shuffle(1).batch(batch, drop_remainder=drop)

    found = explain(dataset(), workers, replicas, AutoShardPolicy.DATA)

    def work(worker: int, meeting: Meeting) -> list[int]:
        mesh = ReplicaMesh(jax.devices()[:replicas])
        options = InputOptions(auto_shard_policy=AutoShardPolicy.DATA)
        context = InputContext(workers, worker, replicas)
        distributed = distribute_dataset(dataset(), mesh, options, context, meeting.of(worker))
        return [row for step in drain(steps_of(distributed)) for part in rows_of(step) for row in part]

    delivered = on_workers(workers, work)
    counts = [row.examples for row in found.workers]
    assert counts == [len(rows) if found.batches else None for rows in delivered]
    assert found.examples == sum(map(len, delivered))
    assert found.left_over == (examples % batch if drop else 0)
    assert found.overlap == 0


def test_files_of_each_worker(tmp_path: Path) -> None:
    found = explain(text(tmp_path, [1, 2, 3]), 2, 2)
    assert (found.requested, found.policy) == ("AUTO", "FILE")
    assert [[Path(name).name for name in row.files] for row in found.workers] == [["part-0", "part-2"], ["part-1"]]
    assert [row.rows for row in found.workers] == [None, None]
    assert [row.examples for row in found.workers] == [4, 2]


def test_shares_from_a_hint() -> None:
    dataset = grain.MapDataset.range(11).pipe(shard_hint).batch(4)
    found = explain(dataset, 2, 2, AutoShardPolicy.HINT)
    assert [row.examples for row in found.workers] == [6, 5]


def test_many_files_are_abbreviated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    explain(text(tmp_path, [1] * 14), 2, 2)
    assert "3 more" in capsys.readouterr().out


def test_without_sharding_everything_overlaps() -> None:
    found = explain(grain.MapDataset.range(10).batch(4), 2, 2, AutoShardPolicy.OFF)
    assert found.overlap == 10
    assert [row.examples for row in found.workers] == [10, 10]
    assert [row.reads for row in found.workers] == [10, 10]


def test_who_reads_more_than_it_computes() -> None:
    mapped = grain.MapDataset.range(8).batch(4).map(lambda batch: batch)
    found = explain(mapped.repeat(2), 2, 2, AutoShardPolicy.DATA)
    assert (found.batches, found.examples) == (None, None)
    batches = [np.arange(4), np.arange(4)]
    # A sequence of one's own may read a batch when it is asked for it; a list has all of them.
    for made, reads in ((UserList(batches), 8), (batches, 4)):
        found = explain(made, 2, 2, AutoShardPolicy.DATA)
        assert [(row.examples, row.reads) for row in found.workers] == [(4, reads), (4, reads)]
    found = explain([np.arange(0), np.arange(0)], 2, 2, AutoShardPolicy.DATA)
    assert [(row.examples, row.reads) for row in found.workers] == [(0, 0), (0, 0)]


def test_what_is_not_known_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = explain(grain.MapDataset.range(8).batch(4).repeat(), 1, 2)
    assert (found.batches, found.examples, found.workers[0].examples) == (None, None, None)
    assert "? batches, ? examples" in capsys.readouterr().out
    found = explain((np.arange(2) for _ in range(2)), 1, 1)
    assert found.dataset == "iterable of batches"


def test_repeated_batches_are_counted() -> None:
    found = explain(make_numpy_dataset(np.arange(10)).batch(4).repeat(3), 1, 2)
    assert (found.batches, found.examples) == (9, 30)
