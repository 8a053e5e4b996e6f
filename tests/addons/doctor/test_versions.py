"""Versions: those that are there, and those that jaxtribute is not made for."""

from importlib.metadata import requires, version

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from jaxtribute._src.addons.doctor import versions
from jaxtribute._src.addons.doctor.report import Level, look


def test_versions_are_listed() -> None:
    system, installed, *others = versions.check_versions(look({}))
    assert system.text.startswith("Python 3.")
    assert "jax 0." in installed.text
    assert "libtpu" not in installed.text
    assert not others


@pytest.mark.parametrize(
    ("name", "number", "level"),
    [
        ("orbax-checkpoint", "0.12.4", Level.ERROR),
        ("orbax-checkpoint", "1.0", Level.ERROR),
        ("keras", "3.14.9", Level.WARNING),
        ("jax", "0.9.2rc1", Level.ERROR),
    ],
)
def test_one_that_does_not_fit_is_told(name: str, number: str, level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda one: number if one == name else version(one))
    *_, found = versions.check_versions(look({}))
    assert found.level is level
    assert found.text.startswith(f"{name} {number} is installed, and jaxtribute is made for {name}")
    assert found.fix.startswith(f"pip install '{name}")


def test_every_bound_that_jaxtribute_declares_is_understood() -> None:
    for line in requires("jaxtribute") or ():
        requirement = Requirement(line)
        if str(requirement.specifier):
            assert not versions.holds("0.0.1", str(requirement.specifier)), line


numbers = st.lists(st.integers(0, 12), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))
bounds = st.lists(
    st.tuples(st.sampled_from([">=", "<=", "==", "!=", "<", ">"]), numbers).map("".join), min_size=1, max_size=2
)


@given(numbers, bounds.map(",".join))
def test_bounds_hold_as_pip_says(number: str, bound: str) -> None:
    assert versions.holds(number, bound) == SpecifierSet(bound).contains(number)
