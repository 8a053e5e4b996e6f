"""Files of JSON that anybody may have written: what is in them, or an error that names the file. Nobody waits."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from jaxtribute._src.json_reading import read_json
from jaxtribute._src.regular_files import IrregularError


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "Expecting value"),
        (b"\xff\xfe", "codec"),
        (b"[" * 50_000, "too many brackets"),
        (b"[1" + b"0" * 5000 + b"]", "digits"),
        (b'{"a": {"b": 1, "b": 1}}', "'b' stands in it twice"),
    ],
)
def test_what_is_no_json(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "one.json").write_bytes(content)
    with pytest.raises(ValueError, match=f"one.json is no JSON.*{words}"):
        read_json(tmp_path / "one.json")


def _listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(path))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "named pipe"),
        (os.mkdir, "folder"),
        (_listen, "socket"),
        (lambda path: path.symlink_to("/dev/zero"), "device"),
        (lambda path: path.write_text(" " * 1000), "more than 100 bytes"),
    ],
)
def test_what_is_no_small_file(make: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "one.json")
    with pytest.raises(IrregularError, match=f"{words}.*one.json"):
        read_json(tmp_path / "one.json", 100)
