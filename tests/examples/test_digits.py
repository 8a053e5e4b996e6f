"""The example that `make demo` runs: it learns, and ends with the same loss under every strategy."""

import re
from pathlib import Path

import pytest

from processes import run_python

pytestmark = [pytest.mark.slow, pytest.mark.optimized]  # as users run it

SCRIPT = Path(__file__).parents[2] / "examples" / "digits.py"
# Rich wraps at the width of the terminal, of which a test has none.
WIDTH = {"COLUMNS": "100"}
RESULT = re.compile(r"^ *(?:\[0\])? *([a-z-]+) +([\d.]+) +([\d.]+)% +[\d,]+ *$", re.MULTILINE)
EPOCH = re.compile(r"^ *(\d+) +([\d.]+) +([\d.]+)% +[\d,]+ *$", re.MULTILINE)


# In one process, which costs one start; a narrow terminal for the last.
RUNNER = """
import os, runpy, sys
for name in sys.argv[1:]:
    print("== run", flush=True)
    sys.argv = ["digits.py", "--strategy", name, "--devices", "7", "--epochs", "2"]
    if name == "mirrored":
        os.environ["COLUMNS"] = "80"
    try:
        runpy.run_path(SCRIPT, run_name="__main__")
    except SystemExit as end:
        print("ended with", end.code, flush=True)
"""


def results(output: str) -> dict[str, tuple[float, float]]:
    """Loss and accuracy in percent on the test images, by strategy."""
    found = {name: (float(loss), float(accuracy)) for name, loss, accuracy in RESULT.findall(output)}
    assert found, output
    return found


def test_without_arguments_both_strategies_reach_the_same_loss_and_97_percent() -> None:
    output = run_python(SCRIPT, env=WIDTH)
    found = results(output)
    assert list(found) == ["one-device", "mirrored"]
    assert all(accuracy >= 97 for _, accuracy in found.values()), output
    (loss, _), (other, _) = found.values()
    assert other == pytest.approx(loss, rel=1e-4)
    assert "Both end with the same loss" in output


def test_each_strategy_does_the_same() -> None:
    """On one device, under the default strategy, an unknown one, on seven devices, and two workers of two devices."""
    names = ("one-device", "default", "mirror", "mirrored")
    runner = RUNNER.replace("SCRIPT", repr(str(SCRIPT)))
    one, default, unknown, seven = run_python(runner, *names, env=WIDTH).split("== run\n")[1:]
    expected = results(one)["one-device"]

    # Each epoch prints loss and accuracy, which improve.
    first, second = [(int(number), float(loss), float(accuracy)) for number, loss, accuracy in EPOCH.findall(one)]
    assert (first[0], second[0]) == (1, 2)
    assert second[1] < first[1]
    assert second[2] > first[2]
    # Variables and slots are listed with their devices.
    assert re.search(r"hidden/kernel:0 +64 x 256 +CPU:0", one)
    assert re.search(r"hidden/kernel/trace:0 +64 x 256 +CPU:0", one)
    assert "CPU:1" not in one

    same(results(default)["default"], expected)

    assert "ended with 2" in unknown
    assert "one-device" in unknown
    assert "mirrored" in unknown

    # 64 and 29 images over 7 replicas: 10 or 4, and 5, 4 or none; so every batch of an epoch is uneven.
    assert all(len(line) <= 80 for line in seven.splitlines())
    assert all(f"CPU:{index}" in seven for index in range(7))
    assert "CPU:7" not in seven
    same(results(seven)["mirrored"], expected)

    # Bar 1 of the launcher; `python -m benchmarks.launch` has the other shapes.
    launch = "from jaxtribute._src.addons.cli.main import entry_point; entry_point()"
    shape = ["--workers", "2", "--devices-per-worker", "2"]
    workers = run_python(
        launch, "launch", *shape, str(SCRIPT), "--strategy", "multi-worker", "--epochs", "2", env=WIDTH
    )
    assert "MultiWorkerMirroredStrategy, 4 replica(s)" in workers
    assert workers.count("hidden/kernel:0") == 1  # only the first worker reports
    same(results(workers)["multi-worker"], expected)


def same(found: tuple[float, float], expected: tuple[float, float]) -> None:
    """Checks loss and accuracy."""
    assert found[0] == pytest.approx(expected[0], rel=1e-4)
    assert found[1] == expected[1]
