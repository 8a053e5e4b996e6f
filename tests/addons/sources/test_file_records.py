"""Records of files by number, and lines of text files."""

import tempfile
from pathlib import Path

import grain
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxtribute._src.addons.sources.file_records import FileRecords, Places
from jaxtribute.errors import ArgumentError
from jaxtribute.input import TextLineSource


class Words(FileRecords):
    """The words of files, which are separated by one blank each."""

    def __init__(self, paths: list[Path]) -> None:
        super().__init__(paths, self.find)
        self.words = [self[np.int64(number)] for number in range(len(self))]

    def __getitem__(self, index: np.int64 | int) -> str:
        return self._read(index).decode()

    @staticmethod
    def find(path: str) -> tuple[Places, Places]:
        words = Path(path).read_text().split()
        ends = np.cumsum([len(word) + 1 for word in words], dtype=np.int64)
        return ends - [len(word) + 1 for word in words] if words else ends, ends - 1


@given(st.lists(st.lists(st.text("abc", min_size=1, max_size=4), max_size=5), max_size=4))
def test_records_are_numbered_over_all_files(files: list[list[str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, str(number)) for number in range(len(files))]
        for path, words in zip(paths, files, strict=True):
            path.write_text(" ".join(words))
        source = Words(paths)
    assert source.words == [word for words in files for word in words]
    assert source.paths == [str(path) for path in paths]


def test_says_what_it_reads(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one two")
    source = Words([tmp_path / "a"])
    assert repr(source) == f"Words(paths={[str(tmp_path / 'a')]})"
    with pytest.raises(IndexError):
        source[2]


lines = st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=8), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(lines, min_size=1, max_size=3), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_every_line_of_every_file(tmp_path: Path, files: list[list[str]], end: str, ended: bool) -> None:
    paths = [tmp_path / str(number) for number in range(len(files))]
    expected: list[str] = []
    for path, content in zip(paths, files, strict=True):
        text = end.join(content) + (end if ended and content else "")
        path.write_bytes(text.encode())
        kept = content if ended or not content or content[-1] else content[:-1]
        expected += kept
    source = TextLineSource(paths)
    assert [source[index] for index in range(len(source))] == expected


def test_a_file_longer_than_a_block(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_text("".join(f"line {number} {'x' * 100}\n" for number in range(20_000)))
    source = TextLineSource(str(path))
    assert len(source) == 20_000
    assert source[19_999].startswith("line 19999 ")
    assert source[12_345].startswith("line 12345 ")


def test_in_a_pipeline(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_text("1\n2\n3\n")
    dataset = grain.MapDataset.source(TextLineSource(path)).map(int).batch(2)
    assert [batch.tolist() for batch in dataset] == [[1, 2], [3]]


def test_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "latin"
    path.write_bytes("é\n".encode("latin-1"))
    assert TextLineSource(path, encoding="latin-1")[0] == "é"


def test_no_files() -> None:
    with pytest.raises(ArgumentError, match="HINT"):
        TextLineSource([])
