"""Functions run in the processes of a cluster on this machine; what fails is named and shown, and nothing is left."""

import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jd
from jaxtribute._src.addons.testing.leaks import is_alive
from jaxtribute._src.addons.testing.shared import SharedRunners
from jaxtribute.errors import ArgumentError, ArgumentTypeError, DeadlineError, ProcessFailedError
from jaxtribute.testing import Exited, MultiProcessRunner, run_multi_process
from processes import await_end

CALLS: list[str] = []


def rank() -> int:
    return json.loads(os.environ["TF_CONFIG"])["task"]["index"]


def remember(word: str, *, times: int = 1) -> list[str]:
    CALLS.extend([word] * times)
    return CALLS


def remember_start() -> None:
    CALLS.append("start")


def place() -> tuple[int, int, int]:
    return jax.process_index(), jax.local_device_count(), jax.device_count()


def arrays() -> dict[str, Any]:
    return {"x": jnp.arange(3) + rank(), "key": np.float32(2)}


def fail(ranks: tuple[int, ...]) -> None:
    print("about to look")
    if rank() in ranks:
        raise ValueError(f"bad value {rank()}")


def fail_and_hang() -> None:
    if rank() == 1:
        sys.exit("no more")
    print("waits", flush=True)
    threading.Event().wait()


def die() -> str:
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


def leave_a_grandchild() -> int:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE).pid


@pytest.mark.slow
def test_two_processes_form_a_cluster_and_keep_their_state(multi_process: SharedRunners) -> None:
    runner = multi_process(workers=2, devices=2)
    assert runner.run(place) == [(0, 2, 4), (1, 2, 4)]
    assert runner.run(remember, ("a",), {"times": 2}) == [["a", "a"]] * 2
    assert runner.run(remember, ["b"]) == [["a", "a", "b"]] * 2
    assert CALLS == []  # this process has a list of its own
    first, second = runner.run(arrays)
    assert isinstance(first["x"], np.ndarray)
    np.testing.assert_array_equal(first["x"] + 1, second["x"])
    here = 5
    assert runner.run(lambda: (rank(), here)) == [(0, 5), (1, 5)]
    assert multi_process(workers=2, devices=2) is runner


@pytest.mark.slow
def test_a_rank_that_raises_is_named_and_the_processes_go_on(multi_process: SharedRunners) -> None:
    runner = multi_process(workers=2, devices=2)
    runner.start()
    pids = runner.pids
    with pytest.raises(ProcessFailedError) as caught:
        runner.run(fail, ((1,),))
    message = str(caught.value)
    assert caught.value.rank == 1
    assert message.startswith("rank 1 of 2 raised ValueError: bad value 1 in fail.")
    assert 'raise ValueError(f"bad value {rank()}")' in message
    assert message.count("about to look") == 2
    with pytest.raises(ProcessFailedError, match=r"(?s)rank . of 2 raised ValueError"):
        runner.run(fail, ((0, 1),))
    runner.run(fail, ((),))
    assert runner.output(0) == runner.output(1) == "about to look\n"
    assert runner.pids == pids


@pytest.mark.slow
def test_a_result_that_cannot_be_sent_is_an_error_of_that_rank(multi_process: SharedRunners) -> None:
    with pytest.raises(ProcessFailedError, match="lock"):
        multi_process(workers=2, devices=2).run(threading.Lock)


@pytest.mark.slow
def test_what_hangs_or_dies_is_killed_and_the_next_call_starts_anew() -> None:
    with MultiProcessRunner(2, None, grace_s=0.2) as runner:
        with pytest.raises(ProcessFailedError, match=r"(?s)rank 1 of 2 raised SystemExit: no more.*in fail_and_hang"):
            runner.run(fail_and_hang)
        assert runner.pids == ()
        assert runner.run(die, lost=[1]) == ["alive", Exited(-9)]
        with pytest.raises(ProcessFailedError, match="rank 1 of 2 ended with exit code -9 in die"):
            runner.run(die)
        assert runner.run(rank) == [0, 1]
        grandchildren = runner.run(leave_a_grandchild)
        assert all(map(is_alive, grandchildren))
        with pytest.raises(
            DeadlineError, match=r"(?s)ranks 0, 1 of 2 did not finish .*<lambda> within 2 s.*in <lambda>"
        ):
            runner.run(lambda: threading.Event().wait(), timeout_s=2)
        await_end(*grandchildren)


@pytest.mark.slow
def test_one_call_in_processes_of_its_own() -> None:
    assert run_multi_process(os.getenv, workers=1, env={"MINE": "1"}, args=("MINE",)) == ["1"]


@pytest.mark.slow
def test_the_processes_end_with_the_one_that_started_them() -> None:
    code = (
        "import jaxtribute as jd; r = jd.testing.MultiProcessRunner(); r.start(); print(*r.pids, flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        pids = [int(pid) for pid in program.stdout.readline().split()]
        assert len(pids) == 3
        assert all(map(is_alive, pids))
        program.kill()
    await_end(*pids)


@pytest.mark.slow
def test_a_runner_has_at_least_one_process_with_one_device() -> None:
    with pytest.raises(ArgumentError, match="workers is 0"):
        MultiProcessRunner(0)
    with pytest.raises(ArgumentError, match="devices is -1"):
        run_multi_process(rank, devices=-1)


@pytest.mark.slow
def test_processes_are_set_up_before_their_first_call() -> None:
    with MultiProcessRunner(1, None, setup=remember_start) as runner:
        assert runner.run(remember, ("a",)) == [["start", "a"]]
        assert runner.run(remember, ("b",)) == [["start", "a", "b"]]
        runner.kill()
        assert runner.run(remember, ("c",)) == [["start", "c"]]


@pytest.mark.slow
def test_an_interrupted_call_ends_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with MultiProcessRunner(1) as runner:
        monkeypatch.setattr(runner, "_collect", interrupt)
        with pytest.raises(KeyboardInterrupt):
            runner.run(rank)
        assert runner.pids == ()


def test_arguments_that_cannot_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = MultiProcessRunner()
    with pytest.raises(ArgumentTypeError, match="cannot be sent to another process"):
        runner.run(rank, (threading.Lock(),))
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ArgumentTypeError, match=r"no name.*\.\[testing\]"):
        runner.run(lambda: 1)
    assert runner.pids == ()
    assert jd.testing.MultiProcessRunner is MultiProcessRunner
