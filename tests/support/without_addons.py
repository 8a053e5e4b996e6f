"""The core without an add-on: its folder is deleted in a copy.

There `import jaxtribute`, the demo and the core's tests run.

python tests/support/without_addons.py [--tests PATH ...] [ADDON ...]    (each in turn by default; A+B: both; all)

As a plugin of pytest (`-p without_addons`) it skips what asks for an add-on that is missing, and counts it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ADDONS = Path("src", "jaxtribute", "_src", "addons")
_MISSING = "jaxtribute._src.addons."


def _is_missing(error: BaseException | None) -> bool:
    """True if an error says that an add-on is not there."""
    while error is not None:
        if isinstance(error, ImportError) and _MISSING in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Leaves out files that import an add-on that is missing."""
    report = yield
    if report.failed and _MISSING in str(report.longrepr):
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, "an add-on is missing")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Skips tests that call for an add-on that is missing."""
    report = yield
    if report.failed and call.excinfo is not None and _is_missing(call.excinfo.value):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, "Skipped: an add-on is missing")
    return report


def tried(addon: str, tests: list[str]) -> bool:
    """Runs import, demo and tests in a copy without an add-on, or without several: A+B; True if all is well."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        kept = shutil.ignore_patterns(".git", ".venv", ".cache", "__pycache__", "site", "build", "dist", ".ruff_cache")
        shutil.copytree(ROOT, copy, ignore=kept)
        for name in addon.split("+"):
            shutil.rmtree(copy / ADDONS / name)
        paths = [str(copy / "src"), str(copy / "tests" / "support")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        commands = {
            "import": ["-c", "import jaxtribute; print(jaxtribute.__file__)"],
            "demo": ["examples/digits.py", "--strategy", "mirrored", "--devices", "2"],
            "tests": ["-m", "pytest", "-q", "-p", "without_addons", "-m", "not slow", "-n", "2", *tests],
        }
        for name, arguments in commands.items():
            done = subprocess.run(
                [sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True, check=False
            )
            last = (done.stdout.strip().splitlines() or [""])[-1]
            print(f"without {addon}: {name}: {'well' if done.returncode == 0 else 'WRONG'}: {last[:150]}", flush=True)
            if done.returncode:
                print(done.stdout[-6000:], done.stderr[-3000:], flush=True)
                return False
    print(f"without {addon}: {time.monotonic() - started:.0f} s", flush=True)
    return True


def main() -> int:
    """Tries them one by one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("addons", nargs="*")
    parser.add_argument("--tests", nargs="+", default=["tests/core"])
    options = parser.parse_args()
    everyone = sorted(path.name for path in (ROOT / ADDONS).iterdir() if (path / "__init__.py").exists())
    named = [name.replace("all", "+".join(everyone)) for name in options.addons] or everyone
    wrong = [addon for addon in named if not tried(addon, options.tests)]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
