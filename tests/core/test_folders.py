"""Folders for sockets: short names, and what killed processes left is removed."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from jaxtribute._src.core import folders
from jaxtribute._src.core.folders import Folder, remove_abandoned, short_base
from jaxtribute.errors import ClusterError


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(folders, "_BELOW", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_long_tmpdir_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    folder = Folder()
    assert not folder.path.startswith(str(long))
    assert len(folder.path) < 40
    assert Path(folder.path).stat().st_mode & 0o077 == 0
    folder.close()
    assert not Path(folder.path).exists()


def test_the_first_that_is_short_and_can_be_written(tmp_path: Path) -> None:
    assert short_base((None, "", "/nonexistent", "/tmp")) == Path("/tmp")
    with pytest.raises(ClusterError, match=r"at most 107 characters.*HINT: set TMPDIR"):
        short_base((str(tmp_path / ("x" * 60)), "/nonexistent"))


KILLED = """
import os, signal, sys, tempfile
from pathlib import Path
from jaxtribute._src.core import folders
folders._BELOW = 0
tempfile.tempdir = sys.argv[1]
folder = folders.Folder()
(Path(folder.path) / "ray").mkdir()
(Path(folder.path) / "ray" / "file").write_text("x")
print(folder.path, flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
"""


def start(base: Path, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", KILLED, str(base), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def path_of(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


@pytest.mark.slow
def test_what_a_killed_process_left_is_removed_by_the_next(base: Path) -> None:
    with start(base, "alive") as alive:
        used = path_of(alive)
        with start(base, "killed") as killed:
            abandoned = path_of(killed)
        (base / "jd-of-another-program").mkdir()
        (base / "jd-file").touch()
        (base / "jd-link").symlink_to(used)
        (abandoned / "socket").touch()
        own = Folder()
        assert not abandoned.exists()
        assert (used / "ray" / "file").exists()
        assert remove_abandoned(base) == []
        assert sorted(path.name for path in base.iterdir() if path not in (used, Path(own.path))) == [
            "jd-file",
            "jd-link",
            "jd-of-another-program",
        ]
        own.close()
        alive.communicate()
    assert remove_abandoned(base) == [used]


@pytest.mark.slow
def test_a_folder_that_is_still_written_into_is_left_for_the_next(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with start(base, "killed") as killed:
        abandoned = path_of(killed)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *_, **__: None)
        assert remove_abandoned(base) == []
    assert (abandoned / "ray" / "file").exists()
    assert remove_abandoned(base) == [abandoned]
