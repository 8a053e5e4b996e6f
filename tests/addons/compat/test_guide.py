"""The guide names every public name of `tf.distribute`, and tells the truth about each."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.seed_cases import CASES
from compat.write_guide import GUIDE, with_tables
from jaxtribute._src.addons.compat.catalog import notes, others
from jaxtribute._src.addons.compat.catalog.distribute import MODULES
from jaxtribute._src.addons.compat.catalog.lookup import (
    Kind,
    distribute_entries,
    entry_of,
    exists,
    names,
    resolve,
    why_absent,
)

SURFACE = Path(os.environ.get("JAXTRIBUTE_SURFACE", GUIDE.parents[2] / "shared" / "reference" / "surface.md"))
needs_surface = pytest.mark.skipif(
    not SURFACE.is_file(), reason=f"the list of names is not at {SURFACE}; set JAXTRIBUTE_SURFACE"
)


def surface() -> Iterator[tuple[str, list[str]]]:
    """The names that the list holds, each with its members."""
    module, name = "", ""
    for line in SURFACE.read_text().split("\n"):
        if line.startswith("## "):
            module = line[3:].strip()
        elif found := re.match(r"- \[.\] (?:class|def|enum|module) `(\w+)", line):
            name = f"{module}.{found[1]}"
            if module.startswith("tf."):
                rest = line.partition("`: ")[2] if " enum " in line else ""
                yield name, members(rest.replace(";", ",")) if rest else []
        elif line.startswith("      ") and module.startswith("tf."):
            yield name, members(line)


def members(text: str) -> list[str]:
    without_arguments = re.sub(r"\((?!settable)[^()]*(?:\([^()]*\)[^()]*)*\)", "", text).replace("(settable)", "")
    return [
        part.strip(" @.*\n").removeprefix("staticmethod ").strip("*").strip()
        for part in re.split(r"[;,]", re.sub(r"\[seed\]", "", without_arguments))
        if part.strip()
    ]


@needs_surface
class TestAgainstTheList:
    def test_every_name_is_in_the_table(self) -> None:
        missing = [name for name, _ in surface() if name not in distribute_entries()]
        assert missing == []

    def test_every_member_is_in_the_table(self) -> None:
        found = [f"{name}.{member}" for name, inside in surface() for member in inside]
        inherited = {f"{prefix}.{name}" for prefix, module in MODULES.items() for name in module.names}
        missing = [name for name in found if name not in distribute_entries() and name not in inherited]
        assert missing == []
        assert len(found) > 150

    def test_the_table_has_no_name_of_its_own(self) -> None:
        assert set(names()) <= {name for name, _ in surface()}


class TestTruth:
    def test_what_is_said_to_exist_exists(self) -> None:
        for entry in distribute_entries().values():
            if entry.kind is not Kind.ABSENT:
                assert resolve(entry.here) is not None, entry.name

    def test_what_is_absent_has_a_reason(self) -> None:
        silent = [entry.name for entry in distribute_entries().values() if entry.kind is Kind.ABSENT and not entry.note]
        assert silent == []

    def test_the_share_that_exists(self, capsys: pytest.CaptureFixture[str]) -> None:
        entries = distribute_entries()
        for what, chosen in (("names", names()), ("names with members", list(entries))):
            here = sum(entries[name].kind is not Kind.ABSENT for name in chosen)
            with capsys.disabled():
                print(f"\n{here} of {len(chosen)} {what} of tf.distribute exist ({here / len(chosen):.0%})", end="")
        assert all(entry.kind is not Kind.ABSENT or entry.note for entry in entries.values())

    def test_remarks_are_about_names_that_there_are(self) -> None:
        paths = {name.removeprefix(f"{prefix}.") for prefix in MODULES for name in distribute_entries()}
        assert (notes.DIFFERENT | notes.REMARKS).keys() <= paths | distribute_entries().keys()

    @pytest.mark.parametrize("name", sorted(others.DIFFERENT | others.REMARKS))
    def test_what_is_said_of_other_names_is_about_names_here(self, name: str) -> None:
        assert entry_of(name).here == name

    @pytest.mark.parametrize("name", sorted(others.ABSENT))
    def test_other_names_that_are_said_to_be_absent_are(self, name: str) -> None:
        assert not exists(name) or name in ("tf.image", "tf.io", "tf.strings", "tf.summary")


class TestLookup:
    def test_a_name_below_one_that_is_absent_is_absent_for_its_reason(self) -> None:
        assert why_absent("tf.estimator.DNNClassifier") == others.ABSENT["tf.estimator"]

    def test_a_name_that_nobody_knows_has_no_reason(self) -> None:
        assert why_absent("tf.nonsense") == ""

    def test_a_longer_name_than_the_table_has_is_what_its_beginning_is(self) -> None:
        assert entry_of("tf.distribute.Strategy.scope.whatever").kind is Kind.SAME

    def test_a_name_of_compat_tf_is_the_same(self) -> None:
        assert entry_of("tf.reduce_sum").kind is Kind.SAME

    def test_a_name_that_means_something_else_says_what(self) -> None:
        assert "order" in entry_of("tf.data.Dataset.shuffle").note


class TestGuide:
    def test_is_up_to_date(self) -> None:
        text = GUIDE.read_text()
        assert text == with_tables(text), "run: PYTHONPATH=tests:tests/addons python -m compat.write_guide"

    def test_names_every_name(self) -> None:
        text = GUIDE.read_text()
        assert [name for name in names() if f"| `{name.rpartition('.')[2]}` |" not in text] == []

    def test_lists_every_prelude(self) -> None:
        text = GUIDE.read_text()
        assert [case.name for case in CASES if (case.prelude or case.repairs) and case.why not in text] == []

    def test_every_prelude_has_a_reason(self) -> None:
        assert [case.name for case in CASES if (case.prelude or case.repairs) and not case.why] == []
