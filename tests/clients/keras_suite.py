"""Keras's own tests in the scope of each strategy: which of them pass plain, and not there.

    python tests/clients/keras_suite.py --reports FOLDER [--keras FOLDER] [--strategies ...] [--jobs 2] [PART ...]

A part is a folder, a file or a test (`metrics/f_score_metrics_test.py::FBetaScoreTest`) of `keras/src`. The wheel of
Keras has its tests; a few need files beside them that only the repository has: `--keras` is the folder `keras/src` of
such a copy. The tests of a part run in one process, plain and in the scope of each strategy. What passes plain alone is
a difference; known ones are in `KNOWN`, each with its reason. The exit status is 1 if there are others.

The outcome of each test is written down when it ends. A second start goes on where the first one was ended, and a test
that ends its process, or takes too long, is tried twice.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

PARTS = ("trainers", "callbacks", "models", "saving", "optimizers", "layers/normalization", "metrics")
STRATEGIES = ("plain", "mirrored", "fully_sharded")
"""Names of `in_scope.STRATEGIES`; the first is what the others are compared with."""
TEST_S = 900
"""Seconds for a test."""
KNOWN: dict[str, str] = {
    "optimizers/optimizer_sparse_test.py::OptimizerSparseTest::test_sparse_gradients": (
        "asks that two reads of a Keras variable's private `_value` are the same object; where replicas keep shards of "
        "a variable, each read puts them together anew (the updates are those of one device)"
    ),
    "models/functional_test.py::FunctionalTest::test_warning_for_mismatched_inputs_structure": (
        "counts a warning with Python's filters off: a step is traced for each shape of the replicas' slices (here of "
        "one row, and of none), and warns in each trace; by default Python shows it once"
    ),
    "trainers/trainer_test.py::TestTrainer::test_fit_eval_flow_for_jax_model_weights": (
        "asks that a Keras variable's private `_value` is None between steps, when Keras has the arrays elsewhere; a "
        "strategy's variables hold their values all the time, and each step gives their memory to the next"
    ),
    "trainers/trainer_test.py::JAXTrainerCorrectnessTest::test_jit_fit_with_out_shardings_logic_distributed": (
        "asks that variables lie as a `keras.distribution` says that is set in the strategy's scope; there it has no "
        "effect, and the strategy says how they lie"
    ),
}
"""Tests that pass plain and not in a scope, by `file::class::test` or a beginning of it, and the reason."""

KNOWN_ALARMS: dict[str, str] = {}
"""Tests of steps that differ from one device on purpose, and the reason."""


@dataclass(frozen=True)
class Outcome:
    """What came of a test: "passed", "failed", "skipped", or "missing" if it never ended; why, if it failed."""

    result: str
    reason: str = ""


Outcomes = dict[str, Outcome]
"""The outcome of each test, by `part/file::class::test`."""


def read(report: Path) -> Outcomes:
    """The outcomes in a file that `in_scope` has written: a test has failed if one of its phases has."""
    found: Outcomes = {}
    for line in _lines(report):
        phase = json.loads(line)
        test, result = phase["test"], phase["outcome"]
        if result == "ended":
            continue
        known = found.get(test)
        if result == "begun":
            found[test] = Outcome("missing", "the process ended")
        elif result == "failed" or known is None or (known.result == "missing" and phase["when"] == "call"):
            found[test] = Outcome(result, phase["reason"])
        elif result == "skipped":
            found[test] = Outcome(result)
    return found


def differences(plain: Outcomes, scoped: Outcomes) -> Outcomes:
    """The outcomes in a scope of tests that pass plain and do not pass there."""
    found: Outcomes = {}
    for test, outcome in plain.items():
        there = scoped.get(test, Outcome("missing", "it has not been run"))
        if outcome.result == "passed" and there.result != "passed":
            found[test] = there
    return found


def reason_for(test: str) -> str | None:
    """The reason why a test is known to differ; None if it is not known."""
    return next((reason for start, reason in KNOWN.items() if test.startswith(start)), None)


class Suite:
    """Tests of Keras that run in processes of their own.

    Args:
      keras: the folder `keras/src`.
      reports: where the outcomes go, and beside them what pytest prints.
    """

    def __init__(self, keras: Path, reports: Path) -> None:
        self._keras = keras
        self._reports = reports
        self._running: list[subprocess.Popen[bytes]] = []

    def report(self, part: str, strategy: str) -> Path:
        """The file with the outcomes of a part."""
        return self._reports / strategy / f"{part.replace('/', '.').replace('::', '.')}.jsonl"

    def run(self, part: str, strategy: str) -> Outcomes:
        """Runs the tests of a part that have not ended yet: in one process, or more where a test ends it.

        Raises:
          SystemExit: pytest does not start.
        """
        report = self.report(part, strategy)
        report.parent.mkdir(parents=True, exist_ok=True)
        tests = list_files(self._keras, part)
        while not _ended(report):
            before = _lines(report)
            self._process(tests, strategy, report)
            if _lines(report) == before:
                raise SystemExit(f"pytest ran no test of {part}. HINT: read {report.with_suffix('.log')}.")
        return read(report)

    def _process(self, tests: Sequence[str], strategy: str, report: Path) -> None:
        environment = {
            **os.environ,
            "KERAS_BACKEND": "jax",
            "CLIENT_STRATEGY": strategy,
            "CLIENT_REPORT": str(report),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, f"--rootdir={self._keras}", "-p", "in_scope"]
        command += ["-p", "no:cacheprovider", "--import-mode=importlib", "-q", "--continue-on-collection-errors"]
        command += [f"--timeout={TEST_S}", "--timeout-method=thread", *(str(self._keras / test) for test in tests)]
        with report.with_suffix(".log").open("ab") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            self._running.append(process)
            process.wait()
            self._running.remove(process)

    def close(self) -> None:
        """Ends the processes that run."""
        for process in list(self._running):
            process.kill()


def _lines(report: Path) -> list[str]:
    return report.read_text().splitlines() if report.exists() else []


def _ended(report: Path) -> bool:
    lines = _lines(report)
    return bool(lines) and json.loads(lines[-1])["outcome"] == "ended"


def list_files(keras: Path, part: str) -> list[str]:
    """The files of tests in a part, or the test that it is."""
    if ".py" in part:
        return [part]
    return [str(file.relative_to(keras)) for file in sorted((keras / part).rglob("*_test.py"))]


def compare(part: str, outcomes: Mapping[str, Outcomes]) -> int:
    """Prints a row of the table of counts, and the differences below it; returns the number of unknown ones.

    Args:
      part: the row's name.
      outcomes: by strategy; those of "plain" are compared with.
    """
    plain = outcomes["plain"]
    row, lines, unknown = [part, _counted(plain)], list[str](), 0
    for strategy, scoped in outcomes.items():
        if strategy == "plain":
            continue
        differ = differences(plain, scoped)
        row.append(f"{_counted(scoped)}, {len(differ)} differ")
        for test, outcome in differ.items():
            reason = reason_for(test)
            unknown += reason is None
            lines.append(f"{strategy}: {test}: {outcome.result}: {reason or 'UNKNOWN: ' + outcome.reason}")
    print(f"| {' | '.join(row)} |", *lines, sep="\n", flush=True)
    return unknown


def _counted(outcomes: Outcomes) -> str:
    counts = Counter(outcome.result for outcome in outcomes.values())
    counts.setdefault("passed", 0)
    return ", ".join(f"{number} {result}" for result, number in sorted(counts.items(), key=lambda count: -count[1]))


def claim(reports: Path, keras: Path) -> None:
    """Keeps a folder of reports for one state of the sources.

    Raises:
      SystemExit: its outcomes are of other sources.
    """
    digest = hashlib.sha256(str(keras.resolve()).encode())
    for file in sorted((_package("jaxtribute")).rglob("*.py")):
        digest.update(file.read_bytes())
    reports.mkdir(parents=True, exist_ok=True)
    note, sources = reports / "sources", digest.hexdigest()[:16]
    if note.exists() and note.read_text() != sources:
        raise SystemExit(f"{reports} has outcomes of other sources than {sources}. HINT: give a folder of its own.")
    note.write_text(sources)


def main() -> int:
    """Runs all, prints each difference and a table of counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=PARTS)
    parser.add_argument("--keras", type=Path, help="the folder keras/src; by default that of the installed package")
    parser.add_argument("--strategies", nargs="*", default=STRATEGIES[1:], choices=STRATEGIES[1:])
    parser.add_argument("--reports", type=Path, required=True, help="the folder for logs and outcomes")
    parser.add_argument("--jobs", type=int, default=1, help="parts that run at the same time")
    given = parser.parse_args()
    keras = given.keras or _package("keras") / "src"
    claim(given.reports, keras)
    suite = Suite(keras, given.reports)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    unknown = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        runs = {
            (part, strategy): pool.submit(suite.run, part, strategy)
            for part in given.parts
            for strategy in ("plain", *given.strategies)
        }
        try:
            for part in given.parts:
                unknown += compare(part, {name: runs[part, name].result() for name in ("plain", *given.strategies)})
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            suite.close()
    return 1 if unknown else 0


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"There is no {name}. HINT: pip install {name}; for Keras, or give --keras.")
    return Path(spec.origin).parent


if __name__ == "__main__":
    sys.exit(main())
