"""Fixtures for pytest: tests that leave nothing behind, and processes that tests share.

In `conftest.py`:

    pytest_plugins = ["jaxtribute.testing.pytest_plugin"]

| fixture | does |
|---|---|
| `no_leaks` | fails a test that leaves a thread, a process or a listening port |
| `same_environment` | fails a test that changes an environment variable, and restores it |
| `verify_step` | `verify_step(step, batch, strategy=strategy)` fails the test if the step is not that of one device |
| `multi_process` | gives runners whose processes the tests of a session share: `multi_process(workers=2, devices=2)` |

A test asks for them by name, or a module does for all of its tests: `pytestmark = pytest.mark.usefixtures("no_leaks")`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import pytest

from jaxtribute._src.addons.testing import leaks
from jaxtribute._src.addons.testing.shared import SharedRunners

if TYPE_CHECKING:
    from jaxtribute._src.addons.verify.verdict import Verdict


@pytest.fixture(scope="session")
def multi_process() -> Generator[SharedRunners]:
    """Runners by number of workers and devices, kept from test to test; the one not used for longest makes room."""
    with SharedRunners() as runners:
        yield runners


@pytest.fixture
def verify_step() -> Callable[..., Verdict]:
    """`jd.testing.verify`: fails the test, with the line and what to write, if a step differs from one device."""
    from jaxtribute._src.addons.verify.asserting import verify  # here, as few tests need it

    return verify


@pytest.fixture
def no_leaks(multi_process: SharedRunners) -> Generator[None]:
    """Fails the test if it leaves a thread, a child process or a listening port."""
    watched = [leaks.list_threads, lambda: leaks.list_children(multi_process.pids), leaks.list_ports]
    before = [listing() for listing in watched]
    yield
    extra: list[str] = []
    for listing, old in zip(watched, before, strict=True):
        extra += leaks.left_behind(listing, old)
    if extra:
        pytest.fail(f"the test left behind: {', '.join(extra)}", pytrace=False)


@pytest.fixture
def same_environment() -> Generator[None]:
    """Fails the test if it changes an environment variable, and restores it."""
    before = leaks.list_environment()
    yield
    after = leaks.list_environment()
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    if changed:
        pytest.fail(f"the test changed environment variables: {', '.join(changed)}", pytrace=False)
