"""Predictions beside measurements; the processes that measure are played by a function."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from rich.console import Console

from jaxtribute._src.addons.planning import calibration
from jaxtribute._src.addons.planning.calibration import (
    Comparison,
    calibrate,
    calibrate_processes,
    interpolated,
    is_here,
    script_cost,
    table,
)
from jaxtribute._src.addons.planning.cost import StepCost
from jaxtribute._src.addons.planning.kinds import DEVICES
from jaxtribute._src.addons.planning.probes import Parts
from jaxtribute.errors import ArgumentError
from planning.test_cost import COST


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def run_module(
        module: str, arguments: Sequence[str], devices: int, workers: int = 1, *, script: Path
    ) -> dict[str, Any]:
        assert arguments[3] == str(script)
        what, file, most, _, *rest = arguments
        assert most == "0"
        calls.append((what, file != "-", rest, devices, workers))
        if file != "-":
            COST.save(Path(file))
        if "--short" in rest:
            return {}
        replicas = 1 if "--alone" in rest else devices * workers
        parts = {"launch": 0.25, "products": 1.0 / devices, "passes": 0.25, "collectives": 0.5 * (replicas - 1)}
        return {"parts": parts, "step": 2.0, "batch": 64, "replicas": replicas}

    monkeypatch.setattr(calibration, "run_module", run_module)
    return calls


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "a.py"
    path.touch()
    return path


def test_each_number_of_devices_has_a_process(asked: list[Any], script: Path) -> None:
    cost, found = calibrate(script, ["--devices", "{devices}"], [1, 3])
    assert cost == COST
    assert asked == [
        ("measure", False, ["--devices", "1"], 1, 1),
        ("measure", True, ["--devices", "3"], 3, 1),
    ]
    assert [(one.devices, one.rows, one.processes) for one in found] == [(1, 64, 1), (3, 22, 1)]
    assert [one.predicted for one in found] == [1.5, pytest.approx(0.5 + 1 / 3 + 1.0)]
    assert [one.error for one in found] == [-0.25, pytest.approx(-1 / 12)]
    assert json.loads(json.dumps(found[1].as_dict())) == {
        "devices": 3,
        "rows": 22,
        "processes": 1,
        "launch": 0.25,
        "products": pytest.approx(1 / 3),
        "passes": 0.25,
        "collectives": 1.0,
        "predicted": pytest.approx(11 / 6),
        "measured": 2.0,
        "error": pytest.approx(-1 / 12),
    }


def test_processes_with_one_device_each(asked: list[Any], script: Path) -> None:
    found = calibrate_processes(script, ["{devices}"], 2)
    assert found == Comparison(2, 32, Parts(0.25, 1.0, 0.25, 0.5), 2.0, processes=2)
    assert asked == [("measure", False, ["1"], 1, 2)]


def test_scripts_that_cannot_be_measured(asked: list[Any], script: Path) -> None:
    with pytest.raises(ArgumentError, match=r"makes 1 replica\(s\) where 2 process\(es\) of 1 .*HINT.*MultiWorkerMirr"):
        calibrate_processes(script, ["--alone"], 2)
    with pytest.raises(ArgumentError, match=r"ended within two steps. HINT"):
        calibrate(script, ["--short"], [1])


def test_the_cost_alone(asked: list[Any], script: Path) -> None:
    assert script_cost(script, ["{devices}"]) == COST
    assert script_cost(script, ["{devices}"], shapes=True) == COST
    # Two processes each: on several devices, and on those of one replica; here that is no single replica.
    both = [("cost", True, ["2"], 2, 1), ("cost", True, ["1"], 1, 1)]
    assert asked == [*both, *[("shapes", *rest) for _, *rest in both]]


PLAIN = """
import numpy as np
import optax
import jaxtribute as jd

strategy = jd.STRATEGY
with strategy.scope():
    w = jd.Variable(np.zeros((64, 4096), np.float32), name="w")
    optimizer = jd.Optimizer(optax.sgd(0.1, momentum=0.9), [w])

def update(x):
    _, gradients = jd.value_and_grad(lambda: ((x @ w) ** 2).sum(), [w])()
    optimizer.apply_gradients(gradients)

step = jd.function(lambda batch: strategy.run(update, (batch,)))
for batch in strategy.experimental_distribute_dataset([np.ones((16, 64), np.float32)]):
    step(batch)
"""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["MirroredStrategy()", "FullyShardedStrategy()", "OneDeviceStrategy('CPU:0')"])
@pytest.mark.parametrize("batch", [0, 1024])
def test_memory_on_one_device_is_that_of_its_program(strategy: str, batch: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLAIN.replace("STRATEGY", strategy))
    cost, transform = script_cost(script, [], shapes=True, most=batch), optax.sgd(0.1, momentum=0.9)

    def step(w: Any, state: Any, x: Any) -> Any:
        gradient = jax.grad(lambda w: ((x @ w) ** 2).sum())(w)
        updates, state = transform.update(gradient, state, w)
        return optax.apply_updates(w, updates), state

    rows = batch or 16
    w, x = (jax.ShapeDtypeStruct(shape, np.float32) for shape in ((64, 4096), (rows, 64)))
    plain: Any = jax.jit(step, donate_argnums=(0, 1)).lower(w, jax.eval_shape(transform.init, w), x)
    memory = plain.compile().memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    assert cost.memory_on(1, rows) == pytest.approx(held + memory.temp_size_in_bytes, rel=0.02)
    cost.save(tmp_path / "step.json")
    assert StepCost.load(tmp_path / "step.json") == cost


@pytest.mark.slow
def test_a_script_that_names_its_devices_is_looked_at_on_these(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PLAIN.replace("STRATEGY", "MirroredStrategy(['CPU:0', 'CPU:1'])"))
    cost = script_cost(script, [])
    assert (cost.replicas, cost.alone) == (2, None)
    assert cost.memory_on(1, 16) >= cost.memory_on(2, 8)


def test_the_table() -> None:
    console = Console(width=160, color_system=None)
    with console.capture() as captured:
        console.print(table([Comparison(2, 32, Parts(0.00025, 0.0005, 0.00025, 0.0005), 0.002, 2)]))
    last = captured.get().splitlines()[-1]
    expected = "2 2 32 0.250 ms 0.500 ms 0.250 ms 0.500 ms 1.500 ms 2.000 ms -25%"
    assert last.split() == expected.split()


def test_computing_for_other_numbers_of_examples() -> None:
    def one(rows: int, seconds: float) -> Comparison:
        return Comparison(1, rows, Parts(0.5, seconds - 1.0, 0.5, 9.0), 1.0)

    measured = interpolated([one(64, 4.0), one(16, 2.0)])
    assert [measured(rows) for rows in (1, 16, 40, 64, 128)] == [2.0, 2.0, 3.0, 4.0, 8.0]


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"there is no script"):
        calibrate(tmp_path / "none.py", [], [1])
    with pytest.raises(ArgumentError, match=r"there is no script .*HINT: give a Python program, or what --save wrote"):
        script_cost(tmp_path / "none.py", [])


def test_this_machine_is_no_h200() -> None:
    assert not is_here(DEVICES["h200"])
