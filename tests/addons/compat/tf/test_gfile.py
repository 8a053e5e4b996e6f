"""`tf.io.gfile`."""

from pathlib import Path

import pytest

import jaxtribute.compat.tf as tf

gfile = tf.io.gfile


def test_folders(tmp_path: Path) -> None:
    inner = gfile.join(tmp_path, "a", "b")
    gfile.makedirs(inner)
    gfile.makedirs(inner)
    assert gfile.isdir(inner)
    assert gfile.exists(inner)
    assert gfile.listdir(tmp_path) == ["a"]
    gfile.rmtree(tmp_path / "a")
    assert not gfile.exists(inner)


def test_files(tmp_path: Path) -> None:
    first, second, third = (gfile.join(tmp_path, name) for name in ("1.txt", "2.txt", "3.bin"))
    with gfile.GFile(first, "w") as stream:
        stream.write("é")
    gfile.copy(first, second)
    gfile.rename(second, third)
    with gfile.GFile(third, "rb") as stream:
        assert stream.read() == "é".encode()
    assert gfile.glob(tmp_path / "*.txt") == [first]
    assert gfile.glob([gfile.join(tmp_path, "*.bin"), gfile.join(tmp_path, "*.txt")]) == [first, third]
    for action in (gfile.copy, gfile.rename):
        with pytest.raises(FileExistsError, match="HINT"):
            action(first, third)
        gfile.copy(first, second, overwrite=True)
    gfile.rename(second, third, overwrite=True)
    gfile.remove(third)
    assert gfile.listdir(tmp_path) == ["1.txt"]
