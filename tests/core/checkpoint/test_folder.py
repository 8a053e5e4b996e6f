"""Which checkpoint of a folder is the newest whole one, and which stay for good."""

from __future__ import annotations

from pathlib import Path

import pytest

import jaxtribute as jd
from jaxtribute._src.core.checkpoint.files import FILE
from jaxtribute._src.core.checkpoint.folder import KeptCheckpoints, newest_whole
from jaxtribute._src.core.checkpoint.series import Identity, identity_of
from jaxtribute.errors import CheckpointDamagedError


@pytest.fixture
def saved(tmp_path: Path) -> list[Path]:
    """Two checkpoints, the newest first."""
    checkpoint = jd.Checkpoint(v=jd.Variable([1.0, 2.0]))
    paths = [Path(checkpoint.save(tmp_path / "ckpt", block=True)) for _ in range(2)]
    return paths[::-1]


def test_a_damaged_one_is_left_out_and_one_that_is_known_is_not_read_again(saved: list[Path], tmp_path: Path) -> None:
    known: dict[Path, Identity | None] = {}
    assert newest_whole(saved, tmp_path, known) == str(saved[0])
    assert known == {saved[0]: identity_of(saved[0])}
    description = (saved[0] / FILE).read_bytes()
    for file in saved[0].rglob("*"):
        if file.is_file() and file.name != FILE:
            file.write_bytes(b"")
    assert newest_whole(saved, tmp_path, known) == str(saved[0])
    assert newest_whole(saved, tmp_path, {}) == str(saved[1])
    (saved[0] / FILE).unlink()  # another one of the same name, as its identity says
    (saved[0] / "aside").write_bytes(b"")
    (saved[0] / FILE).write_bytes(description)
    known[saved[0]] = (0, 0)
    assert newest_whole(saved, tmp_path, known) == str(saved[1])


def test_where_all_are_damaged_each_is_named_with_its_reason(saved: list[Path], tmp_path: Path) -> None:
    for path in saved:
        (path / FILE).write_text("{}")
    with pytest.raises(
        CheckpointDamagedError, match=r"none of the 2 checkpoints in .* is whole:\n.*ckpt-2(.|\n)*ckpt-1"
    ):
        newest_whole(saved, tmp_path, {})


def test_one_that_was_deleted_meanwhile_is_no_damage(saved: list[Path], tmp_path: Path) -> None:
    assert newest_whole([tmp_path / "ckpt-3", saved[0]], tmp_path, {}) == str(saved[0])
    assert newest_whole([tmp_path / "ckpt-3"], tmp_path, {}) is None


def test_those_that_stay_are_read_as_they_were_written(tmp_path: Path) -> None:
    kept = KeptCheckpoints(tmp_path, "ckpt")
    assert kept.entries() == {}
    kept.write({3: 1.5, 7: 2.5})
    assert KeptCheckpoints(tmp_path, "ckpt").entries() == {3: 1.5, 7: 2.5}
    assert KeptCheckpoints(tmp_path, "other").entries() == {}
    assert [one.name for one in tmp_path.iterdir()] == [".ckpt.kept.json"]
