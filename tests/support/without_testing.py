"""Fixtures in place of those of `jaxtribute.testing`, where that add-on is missing: nothing is watched."""

import pytest


@pytest.fixture(scope="session")
def multi_process() -> None:
    """Skips tests of several processes."""
    pytest.skip("the add-on `testing` is missing")


@pytest.fixture
def no_leaks() -> None:
    """Watches nothing."""


@pytest.fixture
def same_environment() -> None:
    """Watches nothing."""
