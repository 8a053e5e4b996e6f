"""Keras's own tests in the scope of each strategy: which of them pass plain, and not there.

    python tests/clients/keras_suite.py --reports FOLDER [--keras FOLDER] [--strategies ...] [--resume] [PART ...]

A part is a folder, a file or a test (`metrics/f_score_metrics_test.py::FBetaScoreTest`) of `keras/src`. The wheel of
Keras has its tests; a few need files beside them that only the repository has: `--keras` is the folder `keras/src` of
such a copy. All tests run in a strategy's scope, in one process; those that do not pass there run once more, plain.
What passes then is a difference; known ones are in `KNOWN`, each with its reason. The exit status is 1 if there are
others.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PARTS = ("trainers", "callbacks", "models", "saving", "optimizers", "layers/normalization", "metrics")
TEST_S = 900
"""Seconds for a test."""
KNOWN: dict[str, str] = {
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
    for line in report.read_text().splitlines() if report.exists() else []:
        phase = json.loads(line)
        test, result = phase["test"], phase["outcome"]
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
    found = {test: outcome for test, outcome in scoped.items() if outcome.result != "passed"}
    return {test: outcome for test, outcome in found.items() if plain.get(test, outcome).result == "passed"}


def reason_for(test: str) -> str | None:
    """The reason why a test is known to differ; None if it is not known."""
    return next((reason for start, reason in KNOWN.items() if test.startswith(start)), None)


def run(keras: Path, tests: Sequence[str], strategy: str, report: Path) -> Outcomes:
    """Runs tests in one process, or, where a test ends it or hangs, those that have not run in the next.

    Args:
      keras: the folder `keras/src`.
      tests: files and tests in it.
      strategy: a name of `in_scope.STRATEGIES`.
      report: where the outcomes go, and beside it what pytest prints; tests that are in it do not run again.
    """
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "CLIENT_STRATEGY": strategy,
        "CLIENT_REPORT": str(report),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, f"--rootdir={keras}", "-p", "in_scope"]
    command += ["-p", "no:cacheprovider", "--import-mode=importlib", "-q", "--continue-on-collection-errors"]
    command += [f"--timeout={TEST_S}", "--timeout-method=thread", *(str(keras / test) for test in tests)]
    with report.with_suffix(".log").open("a") as log:
        while True:
            before = read(report)
            left = [f"--deselect={test}" for test in sorted(before)]
            subprocess.run([*command, *left], env=environment, stdout=log, stderr=subprocess.STDOUT, check=False)
            found = read(report)
            if not any(outcome.result == "missing" for test, outcome in found.items() if test not in before):
                return found


def list_files(keras: Path, part: str) -> list[str]:
    """The files of tests in a part, or the test that it is."""
    if ".py" in part:
        return [part]
    return [str(file.relative_to(keras)) for file in sorted((keras / part).rglob("*_test.py"))]


def compare(strategy: str, parts: Sequence[str], plain: Outcomes, scoped: Outcomes) -> int:
    """Prints the differences between two runs and a table of counts; returns the number of unknown ones."""
    differ = differences(plain, scoped)
    for test, outcome in differ.items():
        print(f"{strategy}: {test}: {outcome.result}: {reason_for(test) or 'UNKNOWN: ' + outcome.reason}")
    unknown = [test for test in differ if reason_for(test) is None]
    for part in parts:
        count: Counter[str] = Counter(passed=0, differ=0, unknown=0)
        for test, outcome in scoped.items():
            if test.startswith(part):
                count[outcome.result if outcome.result == "passed" else "neither"] += test not in differ
                count["differ"] += test in differ
                count["unknown"] += test in unknown
        print(
            f"{strategy:15} {part:25} " + ", ".join(f"{name}: {number}" for name, number in count.items()), flush=True
        )
    return len(unknown)


def main() -> int:
    """Runs all, prints each difference and a table of counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=PARTS)
    parser.add_argument("--keras", type=Path, help="the folder keras/src; by default that of the installed package")
    parser.add_argument("--strategies", nargs="*", default=["mirrored", "fully_sharded"])
    parser.add_argument("--reports", type=Path, required=True, help="the folder for logs and outcomes")
    parser.add_argument("--resume", action="store_true", help="go on with the outcomes that are in the reports")
    given = parser.parse_args()
    keras = given.keras or _installed()
    given.reports.mkdir(parents=True, exist_ok=True)
    tests = [test for part in given.parts for test in list_files(keras, part)]
    unknown = 0
    for strategy in given.strategies:
        reports = [given.reports / f"{strategy}.jsonl", given.reports / f"{strategy}.plain.jsonl"]
        for report in () if given.resume else reports:
            report.unlink(missing_ok=True)
        scoped = run(keras, tests, strategy, reports[0])
        again = [test for test, outcome in scoped.items() if outcome.result in ("failed", "missing")]
        plain = run(keras, again, "plain", reports[1]) if again else {}
        unknown += compare(strategy, given.parts, plain, scoped)
    return 1 if unknown else 0


def _installed() -> Path:
    spec = importlib.util.find_spec("keras")
    if spec is None or spec.origin is None:
        raise SystemExit("Keras is not installed. HINT: pip install keras, or give --keras.")
    return Path(spec.origin).parent / "src"


if __name__ == "__main__":
    sys.exit(main())
