"""Points of the core: what is registered, what is imported when, and what a missing add-on says."""

import sys
from pathlib import Path

import pytest

from jaxtribute._src.core.points import Point
from jaxtribute.errors import MissingLibraryError


def test_modules_are_imported_at_the_first_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = Point[str]("to say words")
    (tmp_path / "offered_words.py").write_text("import builtins\nbuiltins.words_point.register('late')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("builtins.words_point", point, raising=False)
    point.offer("offered_words")
    point.register("early")
    assert "offered_words" not in sys.modules
    assert point.entries() == ("early", "late")
    assert point.last() == "late"
    monkeypatch.delitem(sys.modules, "offered_words")


def test_an_addon_that_is_missing_is_left_out_and_named_by_the_error() -> None:
    point = Point[str]("to say words")
    point.offer("jaxtribute.nothing_of_this_name.words")
    assert point.entries() == ()
    with pytest.raises(
        MissingLibraryError, match=r"to say words.*nothing_of_this_name.*HINT: install jaxtribute whole"
    ):
        point.last()


def test_another_library_that_is_missing_is_an_error() -> None:
    point = Point[str]("to say words")
    point.offer("no_library_of_this_name")
    with pytest.raises(ModuleNotFoundError, match="no_library_of_this_name"):
        point.entries()
