"""Scripts that are watched, and those that measure in a process of their own, or fail."""

import os
import re
import sys
import time
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.launcher.family import Family
from jaxtribute._src.addons.tools import script_settings
from jaxtribute._src.addons.tools.user_scripts import STEPS_AND_INPUT, Finished, run_module, run_script, training_step
from jaxtribute._src.core.observers import Event, Observer, observe
from jaxtribute.errors import DeadlineError, ProcessFailedError

SCRIPT = Path("mine.py")
MODULE = """
import os, sys, time
if sys.argv[1] == "fail":
    print("before"); raise ValueError("mine")
if sys.argv[1] == "hang":
    import subprocess
    print(subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL).pid, file=open(sys.argv[2], "w"), flush=True)
    time.sleep(60)
print("noise")
print("noise", file=sys.stderr)
if sys.argv[1] == "slow":
    from jaxtribute._src.addons.tools import waiting
    waiting._EVERY_S = 0.01
    with waiting.telling("compiling for moons"):
        time.sleep(0.1)
print('{"devices": "%s", "pool": "%s"}' % (os.environ["JAXTRIBUTE_CPU_DEVICES"], os.environ.get("PJRT_NPROC")))
"""


class Counter(Observer):
    def __init__(self) -> None:
        self.steps: list[list[str]] = []
        self.draws = 0

    def on_start(self, event: Event) -> None:
        self.draws += event.kind == "input"
        step = training_step(event)
        if step is not None:
            self.steps.append([variable.name for variable in step.program.donated])


def test_steps_are_programs_that_change_variables() -> None:
    strategy = jd.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        total = jd.Variable(0.0, name="total")

    @jd.function
    def step(batch: Any) -> Any:
        total.assign_add(strategy.reduce("SUM", batch, axis=0))
        return total.read_value()

    @jd.function
    def look() -> Any:
        return total.read_value()

    dataset = strategy.experimental_distribute_dataset([np.ones(4, np.float32)] * 3)
    counter = Counter()
    with observe(counter, *STEPS_AND_INPUT):
        results = [float(step(batch)) for batch in dataset]
        look()
    assert results == [4, 8, 12]
    assert counter.steps == [["total:0"]] * 3
    assert counter.draws == 4, "three batches, and the end"
    step(next(iter(dataset)))
    assert len(counter.steps) == 3, "nobody looks any more"


def test_a_step_may_keep_its_state_in_arguments() -> None:
    @jd.function(donate_argnums=0)
    def step(state: Any) -> Any:
        return state + 1

    counter = Counter()
    with observe(counter, *STEPS_AND_INPUT):
        assert float(step(step(jnp.float32(0)))) == 2
    assert counter.steps == [[], []]


def test_a_script_sees_its_arguments_and_its_directory(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_the_script.py").write_text("VALUE = 7\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, pathlib, neighbour_of_the_script as n\n"
        "if __name__ == '__main__':\n"
        "    pathlib.Path(sys.argv[1]).write_text(f'{sys.argv[2:]} {n.VALUE}')\n"
        "    sys.exit(0)\n"
    )
    argv, path = sys.argv, list(sys.path)
    assert run_script(script, [str(tmp_path / "out"), "a", "b"]) is False
    assert (tmp_path / "out").read_text() == "['a', 'b'] 7"
    assert sys.argv is argv
    assert sys.path == path
    sys.modules.pop("neighbour_of_the_script")


def test_how_a_script_may_end(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from jaxtribute._src.addons.tools.user_scripts import Finished\n"
        "try:\n"
        "    raise {'0': Finished, '1': ValueError, '2': SystemExit}[sys.argv[1]](int(sys.argv[1]))\n"
        "except ValueError as error:\n"
        "    raise\n"
        "except Exception:\n"
        "    pass\n"
    )
    assert run_script(script, ["0"]) is True
    with pytest.raises(ValueError, match="1"):
        run_script(script, ["1"])
    with pytest.raises(SystemExit):
        run_script(script, ["2"])
    with pytest.raises(jd.errors.ArgumentError, match=r"there is no script '/nowhere.py'.*HINT"):
        run_script(Path("/nowhere.py"), [])
    assert not issubclass(Finished, Exception)


def test_settings_that_a_script_makes_at_its_top_are_heard_or_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("JAXTRIBUTE_CPU_DEVICES", "XLA_FLAGS", "JAX_LOG_COMPILES", "JAX_NO_SUCH_SETTING"):
        monkeypatch.setenv(name, "")  # remembered, and as it was at the end
        del os.environ[name]
    script = tmp_path / "script.py"
    script.write_text(
        "import os\n"
        "os.environ.setdefault('JAXTRIBUTE_CPU_DEVICES', '4')\n"
        "os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=5'\n"
        "os.environ.update(JAX_LOG_COMPILES='true', JAX_NO_SUCH_SETTING='1')\n"
    )
    asked: list[int] = []
    before = jax.config.values["jax_log_compiles"]
    try:
        with monkeypatch.context() as patched:
            patched.setattr(script_settings, "set_logical_cpu_devices", asked.append)
            run_script(script, [])
        assert jax.config.values["jax_log_compiles"] is True
    finally:
        jax.config.update("jax_log_compiles", before)
    assert asked == [4, 5]
    assert capfd.readouterr().err == ""
    present = jax.device_count()
    script.write_text("import os\nos.environ['JAXTRIBUTE_CPU_DEVICES'] = '77'\nos.environ['JAX_LOG_COMPILES'] = 'so'\n")
    run_script(script, [])
    told = capfd.readouterr().err.splitlines()
    assert "JAXTRIBUTE_CPU_DEVICES='77', which is not heard: cannot make 77 logical CPU devices" in told[0]
    assert f"already started with {present}. HINT" in told[0]
    assert (
        "JAX_LOG_COMPILES='so', which is not heard: it is neither true nor false. HINT: set it in the shell" in told[1]
    )
    assert type(os.environ).__module__ == "os"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "measured_by_a_test.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PJRT_NPROC", "16")
    return "measured_by_a_test"


@pytest.mark.slow
def test_a_process_gets_its_devices_and_a_pool_that_fits(module: str) -> None:
    assert run_module(module, ["run"], 3, script=SCRIPT) == {"devices": "3", "pool": "None"}


def played(monkeypatch: pytest.MonkeyPatch, returncode: int, output: bytes) -> list[list[str]]:
    """Answers in the place of processes; returns the commands that are to start them."""
    commands: list[list[str]] = []

    def start(_: Family, command: list[str], *__: object) -> SimpleNamespace:
        commands.append(command[1:])
        return SimpleNamespace(
            returncode=returncode, stdout=None, stderr=BytesIO(), communicate=lambda timeout: (output, b"")
        )

    monkeypatch.setattr(Family, "start", start)
    return commands


@pytest.mark.slow
def test_what_a_process_says_of_its_progress_is_passed_on(module: str, capfd: pytest.CaptureFixture[str]) -> None:
    run_module(module, ["slow"], 1, script=SCRIPT)
    lines = capfd.readouterr().err.splitlines()
    assert lines
    assert all(re.fullmatch(r"jaxtribute: compiling for moons, \d+ s so far", line) for line in lines)


@pytest.mark.slow
def test_processes_that_form_a_cluster(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher is played by a module that prints what each of two workers would."""
    commands = played(monkeypatch, 0, b'[1] {"rank": 1}\n[0] noise\n[0] {"rank": 0}\n[1] the end\n')
    answer = run_module(module, ["run"], 1, workers=2, script=SCRIPT)
    assert commands == [["-m", "jaxtribute.cli", "launch", "--workers", "2", "-m", module, "run"]]
    assert answer == {"rank": 0}


@pytest.mark.slow
def test_a_process_that_fails_shows_what_it_printed(module: str) -> None:
    with pytest.raises(
        ProcessFailedError, match=r"(?s)^mine.py on 2 devices ended with 1. HINT.*before.*ValueError: mine"
    ):
        run_module(module, ["fail"], 2, script=SCRIPT)


@pytest.mark.slow
def test_a_process_that_hangs_ends_with_all_that_it_started(module: str, tmp_path: Path) -> None:
    with pytest.raises(DeadlineError, match=r"^mine.py on 2 devices has not ended in 5 s"):
        run_module(module, ["hang", str(tmp_path / "pid")], 2, deadline_s=5.0, script=SCRIPT)
    started, end = int((tmp_path / "pid").read_text()), time.monotonic() + 10
    while is_running(started) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_running(started)


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that has ended and that nobody has asked for does not count."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
def test_a_process_that_the_system_kills(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, -9, b"")
    with pytest.raises(ProcessFailedError, match=r"was killed on 2 devices, .*too little memory.*HINT: .*--shapes"):
        run_module(module, [], 2, script=SCRIPT)
