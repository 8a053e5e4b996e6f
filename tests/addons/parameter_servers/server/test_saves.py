"""Saves of parameter servers: whole or refused, and nobody else's files are touched."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from damages import DAMAGES, damage
from jaxtribute._src.addons.parameter_servers.server import saves
from jaxtribute._src.addons.parameter_servers.server.store import Store
from jaxtribute._src.core import checksums, reading
from jaxtribute.errors import ClusterError
from jaxtribute.partitioners import FixedShardsPartitioner
from parameter_servers.clusters import coordinated, float32


def saved(folder: Path, numbers: tuple[int, ...]) -> list[Path]:
    """Saves of one server, without a cluster."""
    paths = [folder / f"save-{number:06d}" for number in numbers]
    for number, path in zip(numbers, paths, strict=True):
        saves.write_state(saves.file_of(path, 0), {}, [np.full(3, number)])
        marks = {0: checksums.checksum_of(saves.file_of(path, 0))}
        saves.complete(path, saves.SaveDescription.of(number, {0: (0, (3,), "int64")}, marks))
    return paths


def test_what_cannot_be_read_now_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, last = saved(tmp_path, (1, 2))
    mark, failed = checksums.checksum_of, list[Path]()

    def fail(path: Path) -> checksums.Mark:
        failed.append(path)
        if len(failed) in times:
            raise OSError(errno.EIO, "not now")
        return mark(path)

    monkeypatch.setattr(reading, "_PAUSES_S", (0.0,))
    monkeypatch.setattr(checksums, "checksum_of", fail)
    times = range(1, 2)
    assert saves.latest(tmp_path) == last
    times = range(1, 100)
    failed.clear()
    with pytest.raises(ClusterError, match=r"save-000002 cannot be read now: OSError.*not now.*HINT"):
        saves.latest(tmp_path)


@pytest.mark.parametrize("kind", DAMAGES)
def test_every_file_in_every_way(kind: str, tmp_path: Path) -> None:
    with coordinated(servers=2, partitioner=FixedShardsPartitioner(2)) as coordinator:
        with coordinator.strategy.scope():
            table = jd.Variable(np.zeros((4, 2), np.float32), name="table")
        for number in (1, 2):
            table.assign(np.full((4, 2), number, np.float32))
            coordinator.save(tmp_path / "saved")
        files = sorted(path.name for path in (tmp_path / "saved" / "save-000002").iterdir())
        assert files == ["complete.json", "server-0.npz", "server-1.npz"]
        for place, name in enumerate(files):
            folder = tmp_path / name
            shutil.copytree(tmp_path / "saved", folder)
            first, second = folder / "save-000001", folder / "save-000002"
            damage(kind, second / name, second / files[place - 1], first / name, random.Random(f"{kind} {name}"))
            table.assign(np.full((4, 2), 7, np.float32))
            with pytest.raises(
                ClusterError, match=r"(is damaged, and nothing was restored|nothing to restore)[\s\S]*HINT"
            ):
                coordinator.restore(second)
            np.testing.assert_array_equal(table.numpy(), np.full((4, 2), 7))
            assert coordinator.latest_save(folder) == first
            coordinator.restore(first)
            np.testing.assert_array_equal(table.numpy(), np.full((4, 2), 1))


def test_a_server_that_fails_while_it_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with coordinated(servers=2, partitioner=FixedShardsPartitioner(2)) as coordinator:
        with coordinator.strategy.scope():
            table = jd.Variable(np.zeros((4, 2), np.float32), name="table")
        saved = coordinator.save(tmp_path)
        table.assign(np.full((4, 2), 7, np.float32))
        load, calls = Store.load, list[int]()

        def fail_once(store: Store, *given: object) -> None:
            calls.append(1)
            if len(calls) == 2:
                raise MemoryError("no room")
            load(store, *given)  # pyright: ignore[reportArgumentType]

        monkeypatch.setattr(Store, "load", fail_once)
        with pytest.raises(ClusterError, match="no room"):
            coordinator.restore(saved)
        with pytest.raises(ClusterError, match=r"parts of different states[\s\S]*HINT"):
            table.numpy()
        with pytest.raises(ClusterError, match=r"parts of different states[\s\S]*HINT"):
            coordinator.schedule(lambda: 1).fetch()
        coordinator.restore(saved)
        np.testing.assert_array_equal(table.numpy(), np.zeros((4, 2)))
        assert coordinator.schedule(lambda: 1).fetch() == 1


def test_only_folders_of_saves_are_deleted(tmp_path: Path) -> None:
    others = ["save-me", "save-12", "save-000001.tar", "save-", "my-save-000001"]
    for name in others:
        (tmp_path / name).mkdir()
    with coordinated() as coordinator:
        with coordinator.strategy.scope():
            _ = jd.Variable(1.0, name="v")
        for _ in range(4):
            coordinator.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, "save-000003", "save-000004"])


def test_where_no_save_is_whole(tmp_path: Path) -> None:
    assert saves.latest(tmp_path / "nowhere") is None
    with coordinated() as coordinator:
        with coordinator.strategy.scope():
            _ = jd.Variable(1.0, name="v")
        saved = coordinator.save(tmp_path)
    (saved / "complete.json").write_text("[]")
    with pytest.raises(ClusterError, match=r"none of the 1 saves .* is whole[\s\S]*HINT"):
        saves.latest(tmp_path)


def test_the_state_of_a_server_comes_back(tmp_path: Path) -> None:
    arrays = [float32([[1, 2]]), np.asarray(jnp.ones(3, jnp.bfloat16)), np.int32(4)]
    saves.write_state(tmp_path / "a" / "s.npz", {"keys": [1, 2], "applied": [[3, 0]]}, arrays)
    header, found = saves.read_state(tmp_path / "a" / "s.npz")
    assert header == {"keys": [1, 2], "applied": [[3, 0]]}
    for a, b in zip(arrays, found, strict=True):
        assert (np.asarray(a).dtype, np.shape(a), np.asarray(a).tobytes()) == (b.dtype, b.shape, b.tobytes())
        assert b.flags.writeable, "a server must copy it"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["s.npz"]
