"""Signals that come to a launcher, and ranks that Slurm has started."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jaxtribute._src.addons.launcher.launch import become, launch, rank_set_by_slurm, slurm_environment
from jaxtribute._src.addons.launcher.options import Options
from jaxtribute._src.launching import launches

# Two ranks that note their starts, and save when they are told to go, which may be right after their note.
SAVES = """
trap 'echo saved >> notes; exit 75' TERM
echo "start $JAXTRIBUTE_RESTART" >> notes
test "$JAXTRIBUTE_RESTART" = 0 || exit 0
while :; do sleep 0.02; done
"""


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def notes() -> list[str]:
    file = Path("notes")
    return sorted(file.read_text().splitlines()) if file.exists() else []


def launch_with(*numbers: signal.Signals, restarts: int = 0) -> int:
    """Runs the job and sends itself signals once both ranks are there."""

    def send() -> None:
        end = time.monotonic() + 120
        while len(notes()) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        for number in numbers:
            os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        return launch(Options(command=("sh", "-c", SAVES), workers=2, grace_s=0.5, max_restarts=restarts))
    finally:
        sender.join()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_lets_the_ranks_save(number: signal.Signals) -> None:
    assert launch_with(number, restarts=3) == 75
    assert notes() == ["saved", "saved", "start 0", "start 0"]


@pytest.mark.slow
def test_sigusr1_lets_them_save_and_start_again() -> None:
    assert launch_with(signal.SIGWINCH, signal.SIGUSR1) == 0
    assert notes() == ["saved", "saved", "start 0", "start 0", "start 1", "start 1"]


@pytest.mark.slow
def test_ctrl_c_is_no_keyboard_interrupt_and_handlers_are_restored() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    assert launch_with(signal.SIGINT) == 130
    assert {number: signal.getsignal(number) for number in before} == before


def test_a_process_becomes_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    monkeypatch.setattr(os, "execvpe", lambda *args: called.append(args))
    become(("prog", "x"), {"A": "1"})
    assert called == [("prog", ("prog", "x"), {"A": "1"})]


def test_a_step_of_slurm_whose_tasks_are_the_ranks() -> None:
    several = {
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_PROCID": "3",
    }
    assert rank_set_by_slurm(several)
    assert not rank_set_by_slurm({**several, "SLURM_STEP_TASKS_PER_NODE": "1(x2)"})
    assert not rank_set_by_slurm({})
    environment = slurm_environment({**several, "CUDA_VISIBLE_DEVICES": ""})
    config = json.loads(environment["TF_CONFIG"])
    assert config["task"] == {"type": "worker", "index": 3}
    assert config["cluster"]["worker"] == ["n1:8888", "n1:8889", "n2:8888", "n2:8889"]
    assert environment["JAXTRIBUTE_LAUNCHER"] == "1"


# The first start fails after a step; each notes how many programs it had to compile.
COMPILES = """
import os
import jax, jax.numpy as jnp
import jaxtribute as jd

missed = []
jax.monitoring.register_event_listener(lambda event, **_: missed.append(event) if "cache_misses" in event else None)
w = jd.Variable(jnp.ones((32, 32)))

@jd.function
def step(x):
    for _ in range(20):
        x = jnp.tanh(x @ w) + jnp.sin(x)
    return x.sum()

step(jnp.ones((4, 32)))
with open("notes", "a") as notes:
    print(len(missed), file=notes)
if os.environ["JAXTRIBUTE_RESTART"] == "0":
    raise SystemExit(3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [1, 0])
def test_a_restart_finds_the_programs_of_the_start(restarts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    command = (sys.executable, "-c", COMPILES)
    assert launch(Options(command=command, max_restarts=restarts, grace_s=0.5)) == (0 if restarts else 3)
    missed = [int(line) for line in Path("notes").read_text().split()]
    assert (missed[0] > 0 and missed[1] == 0) if restarts else missed == [0]  # a job that ends keeps nothing


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [("-m", "jaxtribute"), ("-m", "jaxtribute.cli"), (str(Path(sys.executable).with_name("jaxtribute")),)]
)
def test_the_launcher_loads_no_jax_and_its_ranks_all_of_the_library(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import jaxtribute as jd; print(jd.MirroredStrategy, jd.REPLICA_AXIS)")
    words = [sys.executable, "-X", "importtime", *command, "launch", "--workers", "2"]
    quiet = [*words, "--run", "run", "--max-restarts", "1", "--track", "csv", "sh", "-c", "echo started"]
    done = subprocess.run(quiet, check=True, capture_output=True, text=True, timeout=100)
    assert sorted(done.stdout.splitlines()) == ["[0] started", "[1] started"]
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert loaded.isdisjoint({"jax", "jaxlib", "numpy"})
    assert "jaxtribute" in loaded
    done = subprocess.run([*words[:-1], "1", "program.py"], check=True, capture_output=True, text=True, timeout=100)
    assert "jaxtribute.MirroredStrategy" in done.stdout


def test_other_processes_are_no_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(argv: list[str], command_line: list[str]) -> bool:
        monkeypatch.setattr(sys, "argv", argv)
        monkeypatch.setattr(sys, "orig_argv", command_line)
        return launches()

    assert judged(["-m", "launch"], ["python", "-X", "dev", "-m", "jaxtribute", "launch"])
    assert judged(["/bin/jaxtribute", "launch", "a.py"], ["python", "/bin/jaxtribute", "launch", "a.py"])
    assert not judged(["-m", "launch"], ["python", "-m", "mine", "launch"])
    assert not judged(["-m", "top", "launch"], ["python", "-m", "jaxtribute", "top", "launch"])
    assert not judged(["train.py", "launch"], ["python", "train.py", "launch"])
    assert not judged([""], ["python"])
    assert not judged([], [])
