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


@pytest.fixture(scope="module")
def outputs() -> list[str]:
    """Of two epochs on one device, under the default strategy, an unknown one, and on seven devices."""
    names = ("one-device", "default", "mirror", "mirrored")
    return run_python(RUNNER.replace("SCRIPT", repr(str(SCRIPT))), *names, env=WIDTH).split("== run\n")[1:]


def test_without_arguments_both_strategies_reach_the_same_loss_and_97_percent() -> None:
    output = run_python(SCRIPT, env=WIDTH)
    found = results(output)
    assert list(found) == ["one-device", "mirrored"]
    assert all(accuracy >= 97 for _, accuracy in found.values()), output
    (loss, _), (other, _) = found.values()
    assert other == pytest.approx(loss, rel=1e-4)
    assert "Both end with the same loss" in output


def test_each_epoch_prints_loss_and_accuracy_which_improve(outputs: list[str]) -> None:
    epochs = [(int(number), float(loss), float(accuracy)) for number, loss, accuracy in EPOCH.findall(outputs[0])]
    assert [number for number, _, _ in epochs] == [1, 2]
    assert epochs[1][1] < epochs[0][1]
    assert epochs[1][2] > epochs[0][2]


def test_variables_and_slots_are_listed_with_their_devices(outputs: list[str]) -> None:
    assert re.search(r"hidden/kernel:0 +64 x 256 +CPU:0", outputs[0])
    assert "CPU:1" not in outputs[0]
    assert re.search(r"hidden/kernel/trace:0 +64 x 256 +CPU:0", outputs[0])


def test_the_default_strategy_does_the_same(outputs: list[str]) -> None:
    expected, accuracy = results(outputs[0])["one-device"]
    loss, same = results(outputs[1])["default"]
    assert loss == pytest.approx(expected, rel=1e-4)
    assert same == accuracy


# 64 and 29 images over 7 replicas: 10 or 4, and 5, 4 or none; so every batch of an epoch is uneven.
def test_any_number_of_devices_does_the_same_and_lines_wrap(outputs: list[str]) -> None:
    output = outputs[3]
    assert all(len(line) <= 80 for line in output.splitlines())
    assert all(f"CPU:{index}" in output for index in range(7))
    assert "CPU:7" not in output
    expected, accuracy = results(outputs[0])["one-device"]
    loss, same = results(output)["mirrored"]
    assert loss == pytest.approx(expected, rel=1e-4)
    assert same == accuracy


def test_two_workers_of_two_devices_do_the_same(outputs: list[str]) -> None:
    """Bar 1 of the launcher; `python -m benchmarks.launch` has the other shapes."""
    launch = "from jaxtribute._src.addons.cli.main import entry_point; entry_point()"
    shape = ["--workers", "2", "--devices-per-worker", "2"]
    arguments = ["launch", *shape, str(SCRIPT), "--strategy", "multi-worker", "--epochs", "2"]
    output = run_python(launch, *arguments, env=WIDTH)
    assert "MultiWorkerMirroredStrategy, 4 replica(s)" in output
    assert output.count("hidden/kernel:0") == 1  # only the first worker reports
    expected, accuracy = results(outputs[0])["one-device"]
    loss, same = results(output)["multi-worker"]
    assert loss == pytest.approx(expected, rel=1e-4)
    assert same == accuracy


def test_an_unknown_strategy_is_an_error_that_lists_the_known(outputs: list[str]) -> None:
    assert "ended with 2" in outputs[2]
    assert "one-device" in outputs[2]
    assert "mirrored" in outputs[2]
