"""Points of the core: what is registered, what is imported when, and what a missing add-on says."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
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
    with pytest.raises(ModuleNotFoundError, match="no_library_of_this_name"):
        point.entries()


def test_threads_that_ask_together_all_find_what_is_registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one found nothing while the first one imported: workers' batches were not compared then."""
    point = Point[str]("to say words")
    begun, goes_on = threading.Event(), threading.Event()
    (tmp_path / "slow_words.py").write_text(
        "import builtins\nbuiltins.words_begun.set()\nassert builtins.words_goes_on.wait(30)\n"
        "builtins.words_point.register('late')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, value in (("point", point), ("begun", begun), ("goes_on", goes_on)):
        monkeypatch.setattr(f"builtins.words_{name}", value, raising=False)
    point.offer("slow_words")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(point.entries)
        assert begun.wait(30)
        second = pool.submit(point.entries)
        assert wait([second], 0.1).not_done, "it waits for the import"
        goes_on.set()
        assert first.result(30) == second.result(30) == ("late",)
    monkeypatch.delitem(sys.modules, "slow_words")
