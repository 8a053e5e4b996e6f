"""What is done with a script in a process of its own, done here in this one."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxtribute._src.addons.planning import probes
from jaxtribute._src.addons.planning import script as scripts
from jaxtribute._src.addons.planning.cost import StepCost
from jaxtribute.errors import DeviceError
from planning.scripts import SOURCE, write


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_cost(tmp_path: Path) -> None:
    scripts.main("cost", str(tmp_path / "cost.json"), "0", str(write(tmp_path)))
    cost = StepCost.load(tmp_path / "cost.json")
    assert (cost.name, cost.batch, cost.replicas) == ("training.py", 24, 8)


def test_shapes_cost_what_values_do(tmp_path: Path) -> None:
    for what in ("cost", "shapes"):
        scripts.main(what, str(tmp_path / what), "0", str(write(tmp_path)))
    assert StepCost.load(tmp_path / "shapes") == StepCost.load(tmp_path / "cost")


def test_shapes_of_what_no_machine_holds(tmp_path: Path) -> None:
    script = tmp_path / "vast.py"
    vast = SOURCE.replace("np.zeros((16, 32), np.float32)", "jax.ShapeDtypeStruct((16, 1 << 30), np.float32)")
    script.write_text("import jax\n" + vast)
    scripts.main("shapes", str(tmp_path / "cost.json"), "0", str(script))
    assert StepCost.load(tmp_path / "cost.json").parameters == 64 << 30


def test_shapes_have_no_values(tmp_path: Path) -> None:
    script = write(tmp_path)
    script.write_text(script.read_text().replace("data = ", "print(w.numpy())\ndata = "))
    with pytest.raises(DeviceError, match="has no values"):
        scripts.main("shapes", str(tmp_path / "cost.json"), "0", str(script))


def test_a_step_and_its_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "FEWEST", 2)
    monkeypatch.setattr(probes, "MOST", 2)
    scripts.main("measure", str(tmp_path / "cost.json"), "0", str(write(tmp_path)))
    found = answer(capsys)
    assert (found["batch"], found["replicas"]) == (24, 8)
    assert set(found["parts"]) == {"launch", "products", "passes", "collectives"}
    assert 0 < found["step"] < 10
    assert all(0 <= seconds < 10 for seconds in found["parts"].values())
    assert found["parts"]["launch"] > 0
    cost = StepCost.load(tmp_path / "cost.json")
    assert (cost.name, cost.replicas) == ("training.py", 8)


def test_a_script_that_ends_too_soon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scripts.main("measure", "-", "0", str(write(tmp_path)), "2")
    assert answer(capsys) == {}
