"""Records of files by number."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.input.file_records import FileRecords, Places


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
