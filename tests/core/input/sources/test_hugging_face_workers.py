"""A streaming dataset between real worker processes: exact positions, restored onto another number of workers."""

from pathlib import Path

import pytest

import jaxtribute as jd
from hugging_face_workers import BATCH, dataset, go_on, go_on_here
from jaxtribute._src.addons.testing.shared import SharedRunners

pytest.importorskip("threadpoolctl")  # sets KMP_DUPLICATE_LIB_OK as it is imported, which hashing a function does
pytest.importorskip("datasets")
pytestmark = pytest.mark.slow


def joined(*workers: list[list[list[int]]]) -> list[int]:
    """The rows of all replicas of all workers, element by element."""
    found: list[int] = []
    for elements in zip(*workers, strict=True):
        for replicas in elements:
            for rows in replicas:
                found += rows
    return found


@pytest.mark.parametrize("kind", ["exact", "shuffled"])
def test_positions_of_two_workers_and_of_one_process(kind: str, multi_process: SharedRunners, tmp_path: Path) -> None:
    workers = multi_process(workers=2, devices=2)
    alone = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    whole = [row for batch in dataset(kind) for row in batch["x"]]
    assert len(whole) > 3 * BATCH
    assert (sorted(whole) == whole) == (kind == "exact")
    one, two, three = (str(tmp_path / name) for name in ("one", "two", "three"))

    first = workers.run(go_on_here, (kind, None, 1, one))
    assert joined(*first) == whole[:BATCH]
    assert all(sum(map(len, rows[0])) == BATCH // 2 for rows in first), "both workers read their half"
    assert joined(go_on(alone, kind, one, 1, two)) == whole[BATCH : 2 * BATCH]
    third = workers.run(go_on_here, (kind, two, 1, three))
    assert joined(*third) == whole[2 * BATCH : 3 * BATCH]
    assert joined(go_on(alone, kind, three, 100, None)) == whole[3 * BATCH :]
    assert joined(*workers.run(go_on_here, (kind, three, 100, None))) == whole[3 * BATCH :]
