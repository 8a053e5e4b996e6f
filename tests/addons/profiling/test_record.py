"""`jaxtribute trace` on a script, from beginning to end."""

import gzip
import json
from pathlib import Path

import pytest

from jaxtribute._src.addons.cli.main import main
from jaxtribute._src.addons.profiling.record import record
from jaxtribute.errors import ArgumentError
from processes import run_python

SCRIPT = """
import sys, time
import jax.numpy as jnp
import numpy as np
import jaxtribute as jd

strategy = jd.MirroredStrategy()
with strategy.scope():
    w = jd.Variable(jnp.zeros((32, 32)), name="w", aggregation=jd.VariableAggregation.MEAN)

def batches():
    while True:
        time.sleep(0.02)  # a slow disk
        yield np.ones((8, 32), np.float32)

@jd.function
def step(batch):
    strategy.run(lambda x: w.assign(w + jnp.tanh(x.T @ x)), (batch,))
    return w.read_value()

assert sys.argv[1:] == ["--rate", "3"]
try:
    # The disk is slow while nothing is computed, however fast that would be.
    for batch in strategy.experimental_distribute_dataset(
        batches(), jd.InputOptions(experimental_per_replica_buffer_size=0)
    ):
        np.asarray(step(batch))
except Exception:
    raise SystemExit("not the script's to catch")
"""


@pytest.mark.slow
def test_a_slow_input_is_found_out(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    code = f"""
        import sys
        from jaxtribute._src.addons.cli.main import main
        out = ["--out", {str(tmp_path / "out")!r}]
        sys.exit(main(["trace", "--steps", "3", "--skip", "1", "--json", *out, {str(script)!r}, "--rate", "3"]))
    """
    printed = run_python(code, devices=2)
    result = json.loads(printed.splitlines()[-1])
    mean = result["mean"]
    assert result["steps"] == 3
    assert result["compiled"] == 0
    assert set(result["devices"]) == {"CPU:0", "CPU:1"}
    assert sum(mean.values()) == pytest.approx(result["step_s"])
    assert mean["input"] > 0.0199, result
    assert min(mean["compute"], mean["collectives"]) > 0, result
    assert any(one["collective"] for one in result["operations"]), result
    files = Path(result["files"])
    assert list(files.glob("*.xplane.pb"))
    with gzip.open(files / "perfetto_trace.json.gz") as file:
        assert json.load(file)["traceEvents"]


@pytest.mark.slow
def test_what_compiles_within_the_steps_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    shorter = "yield np.ones((8 if n != 4 else 6, 32), np.float32)"
    script.write_text(
        SCRIPT.replace("while True:", "for n in range(20):").replace("yield np.ones((8, 32), np.float32)", shorter)
    )
    command = ["trace", "--steps", "3", "--skip", "1", "--out", str(tmp_path / "out"), str(script), "--rate", "3"]
    printed = run_python(f"import sys; from jaxtribute._src.addons.cli.main import main; sys.exit(main({command!r}))")
    assert " ".join(printed.split()).count("1 function(s) were compiled within these steps") == 1, printed


@pytest.mark.slow
def test_each_worker_tells_of_its_own_devices(tmp_path: Path) -> None:
    """Workers of one machine wrote the same file, and both told of the devices of one."""
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(SCRIPT.replace("MirroredStrategy", "MultiWorkerMirroredStrategy"))
    command = ["trace", "--steps", "2", "--skip", "1", "--json", "--out", str(out), str(script), "--rate", "3"]
    command = ["launch", "--workers", "2", "--devices-per-worker", "2", "-m", "jaxtribute", *command]
    printed = run_python(f"import sys; from jaxtribute._src.addons.cli.main import main; sys.exit(main({command!r}))")
    for rank in range(2):
        prefix = f"[{rank}] {{"
        told = [json.loads(line[len(prefix) - 1 :]) for line in printed.splitlines() if line.startswith(prefix)]
        assert [set(one["devices"]) for one in told] == [{"CPU:0", "CPU:1"}], printed
        files = Path(told[0]["files"])
        assert files.is_relative_to(out / f"worker-{rank}")
        assert len(list(files.glob("*.xplane.pb"))) == 1


def test_a_script_that_ends_too_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    assert main(["trace", "--out", str(tmp_path), str(script)]) == 2
    assert "ended after 0 steps, and 3 + 2 + 5 are needed" in capsys.readouterr().err


def test_numbers_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"steps=0.*HINT"):
        record(tmp_path / "script.py", directory=tmp_path, steps=0)
