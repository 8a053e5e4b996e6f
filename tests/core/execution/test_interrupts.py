"""A signal whose handler raises, at any point: the variables are those before or after the step, whole."""

import dis
import gc
import random
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxtribute as jd
from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.execution.interrupts import Deferral
from jaxtribute._src.core.execution.program import Program
from jaxtribute._src.core.execution.rendezvous import Workers
from jaxtribute._src.core.values.stored import release, updating
from replicas import here, mirrored, one_device, variable
from samples import ALL_CASES

SUM, MEAN = jd.VariableAggregation.SUM, jd.VariableAggregation.MEAN
MANY = 40 if ALL_CASES else 12
WEAK_SETS = str(Path(weakref.__file__).with_name("_weakrefset.py"))
OWN, JAX = str(Path(jd.__file__).parent), str(Path(jax.__file__).parent)


class Interrupted(BaseException):
    """What the signals' handlers raise."""


class TooLateError(Exception):
    """A test has taken too long: something waits for ever."""


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raises, unless the moment is one that nothing can be promised of: a timer sends the signal again soon after.

    JAX's own Python, such as what sets its state before a `try`, and whatever it calls meanwhile, may leave a state
    that is not its own, or wrap the error; what is raised in the callbacks of the garbage collector, of a weak
    reference or of an object that is removed is lost.
    """
    while frame is not None and number == signal.SIGALRM:
        callback = frame.f_code.co_name == "__del__" or frame.f_code in [
            getattr(c, "__code__", None) for c in gc.callbacks
        ]
        if callback or frame.f_code.co_filename.startswith((JAX, weakref.__file__, WEAK_SETS)):
            signal.setitimer(signal.ITIMER_REAL, 1e-4)
            return
        frame = frame.f_back
    raise Interrupted(number)


def give_up(_: int, __: FrameType | None) -> None:
    raise TooLateError


@pytest.fixture(autouse=True)
def raising() -> Generator[None]:
    """Handlers that raise, of two signals, and of a third that ends what has a `deadline`."""
    handlers = {signal.SIGALRM: interrupt, signal.SIGUSR1: interrupt, signal.SIGUSR2: give_up}
    old = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in old.items():
        signal.signal(number, handler)


@contextmanager
def deadline(seconds: float) -> Generator[None]:
    """Raises `TooLateError` in the main thread, even if that waits for a lock, when the time is up; again and again.

    No signal comes after its end: one that is raised in pytest's own code ends the whole run.
    """
    done, main = threading.Event(), threading.main_thread().ident
    assert main is not None

    def watch() -> None:
        late = done.wait(seconds)
        while not late:
            signal.pthread_kill(main, signal.SIGUSR2)
            late = done.wait(5)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        done.set()
        thread.join()


class Moments:
    """Counts the moments at which CPython calls signals' handlers, and sends itself a signal at one of them.

    That is after a call, at the start of a function and where a loop goes back. A trace function raises an operation
    later: moments are left out where another handler of exceptions is in force by then. So are those in `__del__`,
    from which nothing can be raised.

    Args:
      where: beginnings of the paths of the code that counts.
      at: the moment, from 0; by default none.
    """

    def __init__(self, where: tuple[str, ...], at: int = -1) -> None:
        self._where, self._at = where, at
        self.count = 0
        self._known: dict[CodeType, dict[int, tuple[bool, int]]] = {}
        self._last: dict[FrameType, int] = {}

    def __enter__(self) -> "Moments":
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self._where) or frame.f_code.co_name == "__del__":
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._operation

    def _operation(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "return":
            self._last.pop(frame, None)
        if event != "opcode":
            return self._operation
        known = self._known.get(frame.f_code)
        if known is None:
            known = self._known[frame.f_code] = _checks(frame.f_code)
        checks, handler = known.get(self._last.get(frame, -1), (False, -1))
        self._last[frame] = frame.f_lasti
        if checks and handler == known[frame.f_lasti][1]:
            self.count += 1
            if self.count - 1 == self._at:
                signal.raise_signal(signal.SIGUSR1)
        return self._operation


def moments(where: tuple[str, ...], call: Callable[[], Any]) -> int:
    """How many moments `call` has."""
    with Moments(where):
        call()  # Python 3.13 tells of operations from a function's second call on
    with Moments(where) as seen:
        call()
    return seen.count


def _checks(code: CodeType) -> dict[int, tuple[bool, int]]:
    """For each operation whether CPython looks for signals at its end, and where exceptions in it go."""
    bytecode: Any = dis.Bytecode(code)
    found: dict[int, tuple[bool, int]] = {}
    for one in bytecode:
        inside = [entry for entry in bytecode.exception_entries if entry.start <= one.offset < entry.end]
        checks = one.opname.startswith(("CALL", "RESUME", "JUMP_BACKWARD"))
        found[one.offset] = checks, inside[-1].target if inside else -1
    return found


class Training:
    """Variables that a step changes together.

    Args:
      strategy: whose they are.
      compiled: whether the step is.
    """

    def __init__(self, strategy: jd.Strategy, *, compiled: bool) -> None:
        self.v, self.w = variable(strategy, jnp.zeros(64), aggregation=MEAN), variable(strategy, 0.0, aggregation=MEAN)
        self.plain = jd.Variable(0.0)
        with strategy.scope():
            self.slots = jd.Optimizer(optax.sgd(1.0), [variable(strategy, jnp.zeros(4), aggregation=MEAN)])
        variables = self.slots.trainable_variables

        def fn(x: Any) -> Any:
            self.v.assign_add(jnp.ones(64) * x)
            if not compiled:
                here().all_reduce("SUM", x)
            self.slots.apply_gradients([-jnp.ones(4) * x], reduce_op="MEAN")
            self.w.assign_add(x)
            return x

        def step(x: Any) -> Any:
            self.plain.assign_add(1.0)
            return strategy.run(fn, (x,))

        self.all = [self.v, self.w, *variables] + ([self.plain] if compiled else [])
        self.step: Callable[[Any], Any] = jd.function(step) if compiled else lambda x: strategy.run(fn, (x,))
        self.x = jnp.ones(())
        self.done = 0
        for _ in range(2):
            self.step(self.x)
        self.check()

    def check(self) -> None:
        """All variables are those after one number of steps; no lock is held, and no scope is left open."""
        values = {float(np.ravel(v.numpy())[0]) for v in self.all} | {float(np.ravel(v.numpy())[-1]) for v in self.all}
        assert len(values) == 1, values
        assert self.done <= values.pop()
        self.done = int(float(self.w.numpy()))
        assert contexts.depth() == 0
        free: list[bool] = []
        thread = threading.Thread(target=lambda: free.append(updating.acquire(timeout=20) and not updating.release()))
        thread.start()
        thread.join()
        assert free == [True]


def interrupt_everywhere(training: Training, where: tuple[str, ...], tries: int, before: Callable[[], None]) -> int:
    """Interrupts one step after the other, at moments spread over a step; returns how many interrupts came out."""

    def step() -> None:
        before()
        training.step(training.x)

    total, came = moments(where, step), 0
    for at in sorted({*np.linspace(0, total - 1, tries, dtype=int).tolist(), *range(max(0, total - tries), total)}):
        before()
        one = Moments(where, at)
        try:
            with deadline(60), one:
                training.step(training.x)
            assert one.count <= at, "a step after an interrupt may have fewer moments, but what was raised came out"
        except Interrupted:
            came += 1
        finally:
            sys.settrace(None)
        training.check()
    training.step(training.x)
    training.check()
    return came


def strategy_of(name: str) -> jd.Strategy:
    if name == "central":
        return jd.CentralStorageStrategy(["CPU:1", "CPU:2"], "CPU:0")
    return mirrored(2) if name == "mirrored" else one_device(0)


def nothing() -> None:
    """No preparation."""


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["one", "mirrored", "central"])
def test_any_moment_of_a_compiled_step(name: str) -> None:
    least = 12 if name == "central" else 5  # a step like the one before passes few moments
    assert interrupt_everywhere(Training(strategy_of(name), compiled=True), (OWN,), 20, nothing) > least


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["one", "mirrored"])
def test_any_moment_of_a_compiled_step_whose_variables_another_program_had(name: str) -> None:
    training = Training(strategy_of(name), compiled=True)
    (program,) = training.step._signatures.programs.values()  # pyright: ignore[reportFunctionMemberAccess]
    assert isinstance(program, Program)
    donated = program.donated
    assert interrupt_everywhere(training, (OWN,), 40, lambda: release(donated)) > 12


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "mirrored"] if ALL_CASES else ["mirrored"])
def test_any_moment_of_a_compiled_step_that_jax_has_no_program_for(name: str) -> None:
    training = Training(strategy_of(name), compiled=True)
    programs: Any = list(training.step._signatures.programs.values())  # pyright: ignore[reportFunctionMemberAccess]
    assert isinstance(programs[0], Program)
    came = interrupt_everywhere(training, (OWN, JAX), 3, programs[0]._step.compile_anew)  # pyright: ignore[reportPrivateUsage]
    assert came > 0


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("name", ["one", "mirrored", "central"])
def test_any_moment_of_an_eager_step(name: str) -> None:
    assert interrupt_everywhere(Training(strategy_of(name), compiled=False), (OWN,), 15, nothing) > 10


def test_any_moment_at_which_a_thread_starts() -> None:
    free, where, came = threading.Event(), (OWN, threading.__file__), 0

    def job() -> None:
        free.wait(60)

    for at in range(0, moments(where, lambda: Workers("worker").submit(job)), 1 if ALL_CASES else 4):
        pool, ran = Workers("worker"), threading.Event()
        try:
            with deadline(60), Moments(where, at):
                pool.submit(job)
        except Interrupted:
            came += 1
        # Nothing that only seems to run is left, and what comes next waits for no job of before.
        assert [thread for thread in threading.enumerate() if thread.ident is None] == []
        with Moments(where):  # what runs without it is told of from its second call on, as above
            pool.submit(ran.set)
        assert ran.wait(20)
    free.set()
    assert came > 10


def at_random_moments(count: int, longest: float, act: Callable[[], None], check: Callable[[], None]) -> None:
    """Sends signals at random moments while `act` is called again and again; each must come out of it."""
    moments = random.Random(7)
    for _ in range(count):
        with deadline(60), pytest.raises(Interrupted):  # noqa: PT012
            signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, longest))
            while True:
                act()
        check()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "compiled"), [("one", True), ("mirrored", True), ("one", False), ("mirrored", False)])
def test_two_hundred_random_moments(name: str, compiled: bool) -> None:
    training = Training(strategy_of(name), compiled=compiled)
    longest = 2e-3 if compiled else 2e-2
    tries = 200 if compiled else 60 if ALL_CASES else 20
    at_random_moments(tries, longest, lambda: training.step(training.x), training.check)


def test_training_on_a_dataset_that_is_saved_after_each_interrupt(tmp_path: Path) -> None:
    strategy = mirrored(2)
    v = variable(strategy, jnp.zeros(64), aggregation=SUM)
    w = variable(strategy, 0.0, aggregation=SUM)
    data = strategy.experimental_distribute_dataset([jnp.ones((4,))] * 50)

    @jd.function
    def step(batch: Any) -> None:
        def fn(x: Any) -> None:
            v.assign_add(jnp.ones(64) * x.sum())
            w.assign_add(x.sum())

        strategy.run(fn, (batch,))

    def epoch() -> None:
        for batch in data:
            step(batch)

    checkpoint = jd.Checkpoint(v=v, w=w)

    def check() -> None:
        now = float(w.numpy())
        path = checkpoint.save(str(tmp_path / "after"))
        w.assign(-1.0)
        checkpoint.restore(path)
        assert float(w.numpy()) == now
        assert set(v.numpy().tolist()) == {now}

    epoch()
    at_random_moments(12 if ALL_CASES else 5, 1e-2, epoch, check)


def test_an_interrupt_of_a_save(tmp_path: Path) -> None:
    v = jd.Variable(jnp.arange(1000.0))
    checkpoint = jd.Checkpoint(v=v)
    step = jd.function(lambda: v.assign_add(jnp.ones(1000)))

    def check() -> None:
        step()
        assert (v.numpy() - np.arange(1000.0)).std() == 0.0
        path = checkpoint.save(str(tmp_path / "whole"))
        expected = v.numpy()
        v.assign(jnp.zeros(1000))
        checkpoint.restore(path)
        assert v.numpy().tolist() == expected.tolist()

    def save() -> None:
        checkpoint.save(str(tmp_path / "cut"))

    check()
    at_random_moments(10, 3e-2, save, check)


def test_deferred_handlers_are_called_at_the_end_in_order() -> None:
    deferral, old = Deferral(), signal.getsignal(signal.SIGUSR1)
    deferral.begin()
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGALRM)
    with pytest.raises(Interrupted) as caught:
        deferral.end()
    assert caught.value.args == (signal.SIGALRM,)
    context: Any = caught.value.__context__
    assert context.args == (signal.SIGUSR1,)
    assert signal.getsignal(signal.SIGUSR1) is old
    with pytest.raises(Interrupted):
        signal.raise_signal(signal.SIGUSR1)


def test_a_handler_set_meanwhile_stays() -> None:
    deferral, seen = Deferral(), list[int]()
    deferral.begin()
    signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    deferral.end()
    signal.raise_signal(signal.SIGUSR1)
    assert seen == [signal.SIGUSR1]


@pytest.mark.slow
@pytest.mark.parametrize(("taken", "least"), [(False, 3), (True, MANY)])
def test_many_variables_at_any_moment(taken: bool, least: int) -> None:
    variables = [jd.Variable(0.0) for _ in range(MANY)]

    def step_of_its_own() -> Any:
        @jd.function
        def step() -> None:
            for v in variables:
                v.assign_add(1.0)

        return step

    step, other = step_of_its_own(), step_of_its_own()

    def values() -> set[float]:
        return {float(v.numpy()) for v in variables}

    def turn() -> None:
        step()
        if taken:  # each step then goes through all variables, to take their arrays back
            other()

    for _ in range(2):
        turn()
    total = moments((OWN,), turn)
    for at in range(total):
        with pytest.raises(Interrupted), deadline(60), Moments((OWN,), at):
            turn()
        assert len(values()) == 1
    assert total > least


def test_an_interrupted_lockstep_run_waits_for_nobody() -> None:
    strategy = mirrored(3)

    def fn() -> Any:
        total = here().all_reduce("SUM", jnp.ones(()))
        return here().all_reduce("SUM", total)

    strategy.run(fn)
    where = (OWN + "/_src/core/execution/rendezvous", OWN + "/_src/core/execution/rendezvous")
    total = moments(where, lambda: strategy.run(fn))
    came = 0
    for at in range(total):
        try:
            with deadline(20), Moments(where, at):
                strategy.run(fn)
        except Interrupted:
            came += 1
        finally:
            sys.settrace(None)
        assert contexts.depth() == 0
    assert came > total // 2
    assert [float(x) for x in strategy.run(fn).values] == [9.0] * 3


def test_an_interrupt_waits_for_what_other_threads_do_in_the_step() -> None:
    """A program that such a thread starts beside the next step's may wait for its devices, and that one for its."""
    main, left = threading.main_thread().ident, list[int]()
    assert main is not None

    def fn(x: Any) -> Any:
        replica = here().replica_id_in_sync_group
        if replica == 1:  # in a thread of its own, as the first one waits
            signal.pthread_kill(main, signal.SIGUSR1)
            until = time.monotonic() + 0.2
            while time.monotonic() < until:
                jnp.ones(2).block_until_ready()
            left.append(1)
        return here().all_reduce("SUM", x)

    with deadline(60), pytest.raises(Interrupted):
        mirrored(2).run(fn, (jnp.ones(()),))
    assert left == [1]
