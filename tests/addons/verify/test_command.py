"""What `jaxtribute verify` takes, besides scripts, and what it refuses."""

from pathlib import Path

import jax
import pytest

from jaxtribute._src.addons.cli.main import main

MODULE = """
import sys
import numpy as np, jaxtribute as jd
from .parts import total
strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
@jd.function
def step(x):
    return strategy.reduce("SUM", strategy.run(total, (x,)), axis=None)
for batch in strategy.experimental_distribute_dataset([np.ones((12, 3), "float32")] * 2):
    step(batch)
print(sys.argv[1:], __name__)
END
"""


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(("end", "status"), [("", 0), ("raise ValueError('at its end')", 2)], ids=["right", "fails"])
@pytest.mark.parametrize("name", ["package.train", "package"])
def test_a_module_of_a_package_is_verified(
    name: str,
    end: str,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    jax.devices()  # the command makes devices, and settings of their threads, only where JAX has not begun
    # Of another name in each test: modules stay loaded.
    own = f"package_{tmp_path.name.replace('-', '_')}"
    folder = tmp_path / own
    folder.mkdir()
    for file, text in (("__init__", ""), ("parts", "def total(x):\n    return x.sum()\n")):
        (folder / f"{file}.py").write_text(text)
    for file in ("train", "__main__"):
        (folder / f"{file}.py").write_text(MODULE.replace("END", end))
    monkeypatch.chdir(tmp_path)
    found = main(["verify", "-m", name.replace("package", own), "--epochs", "1"]), capsys.readouterr()
    assert found[0] == status, found[1]
    assert found[1].out.startswith("step: as on one device"), found[1]
    assert "['--epochs', '1'] __main__" in found[1].out
    assert ("at its end" in found[1].err) == bool(end)
    assert "runpy" not in found[1].err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["notebook.ipynb"], "is a notebook, and no Python program. HINT: export it"),
        (["nowhere.py"], "there is no script 'nowhere.py'"),
        (["-m", "no.such_module"], "there is no module 'no.such_module'"),
        ([], "the following arguments are required: SCRIPT\n"),
        (["--again", "-1", "train.py"], "'-1' is no whole number from 0 on"),
    ],
)
def test_what_cannot_be_run_is_told(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    jax.devices()
    (tmp_path / "notebook.ipynb").write_text('{"cells": [], "metadata": null}')
    monkeypatch.chdir(tmp_path)
    try:
        status = main(["verify", *arguments])
    except SystemExit as end:
        status = end.code
    assert status == 2
    assert told in capsys.readouterr().err
