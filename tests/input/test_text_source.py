"""Lines of text files."""

from pathlib import Path

import grain
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxtribute.errors import ArgumentError
from jaxtribute.input import TextLineSource

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
