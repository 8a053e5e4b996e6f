"""A plugin for pytest that runs each test in a strategy's scope; `keras_suite` loads it with `-p in_scope`.

    CLIENT_STRATEGY=mirrored CLIENT_REPORT=report.jsonl pytest -p in_scope FILE

The plain run uses it, too, so that both see the same devices. Environment variables: `CLIENT_STRATEGY` is a name of
`STRATEGIES`, `CLIENT_REPORT` the file that gets a line of JSON for each phase of a test. Tests that have ended in it,
or have begun twice, do not run again. With `CLIENT_VERIFY` their steps go through `jaxtribute verify`; of the tests
every `CLIENT_EVERY`th runs.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest
from alarms import ASKED, no_alarm

import jaxtribute as jd
from jaxtribute import config

DEVICES = 4
STRATEGIES: dict[str, Callable[[], jd.Strategy]] = {
    "plain": jd.get_strategy,
    "mirrored": lambda: jd.MirroredStrategy([f"CPU:{i}" for i in range(DEVICES)]),
    # Without a least size, as no variable of a test would reach it.
    "fully_sharded": lambda: jd.FullyShardedStrategy([f"CPU:{i}" for i in range(DEVICES)], min_bytes=0),
}

config.set_logical_cpu_devices(DEVICES)


class InScope:
    """The plugin.

    Args:
      name: the strategy's name; tests of "plain" enter no scope.
      report: the file that gets a line for each phase of each test.
    """

    def __init__(self, name: str, report: Path) -> None:
        self._strategy = None if name == "plain" else STRATEGIES[name]()
        self._report = report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None]:
        """The scope, around a test and what its class sets up for it."""
        if self._strategy is None:
            return (yield)
        with self._strategy.scope(), no_alarm() if ASKED else nullcontext():
            return (yield)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leaves out what the report has already."""
        begun, ended = Counter[str](), set[str]()
        for line in self._report.read_text().splitlines() if self._report.exists() else []:
            phase = json.loads(line)
            begun[phase["test"]] += phase["outcome"] == "begun"
            if phase.get("when") == "teardown":
                ended.add(phase["test"])
        items[:] = items[:: int(os.environ.get("CLIENT_EVERY", "1"))]
        items[:] = [item for item in items if item.nodeid not in ended and begun[item.nodeid] < 2]

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Notes that there is no more to run."""
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
            self._note({"test": "", "outcome": "ended"})

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Notes a test that begins: one that ends the process has no more to say."""
        self._note({"test": nodeid, "outcome": "begun"})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes what came of a phase."""
        lines = report.longreprtext.strip().splitlines()
        raised = [line[1:].strip() for line in lines if line.startswith("E ")]
        reason = " ".join(raised or lines[-1:])[:400] if report.failed else ""
        self._note({"test": report.nodeid, "when": report.when or "", "outcome": report.outcome, "reason": reason})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Notes a file that cannot be imported."""
        if report.failed:
            self._note(
                {"test": report.nodeid, "when": "collect", "outcome": "failed", "reason": report.longreprtext[-400:]}
            )

    def _note(self, line: dict[str, str]) -> None:
        with self._report.open("a") as file:
            file.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugin, and what Keras's own configuration has for its tests."""
    config.addinivalue_line("markers", "requires_trainable_backend: for backends that train")
    config.addinivalue_line("markers", "multi_device: for more than one device")
    helpers = ModuleType("conftest")
    setattr(helpers, "skip_if_backend", _skip_if_backend)  # noqa: B010 (a module has no such attribute)
    sys.modules.setdefault("conftest", helpers)
    config.pluginmanager.register(InScope(os.environ["CLIENT_STRATEGY"], Path(os.environ["CLIENT_REPORT"])))


def _skip_if_backend(backend: str, reason: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(backend == "jax", reason=reason)
