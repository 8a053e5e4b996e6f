"""The suite runs on eight logical CPU devices, with JAX at its strictest, and lets no test leave anything behind."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import sys
import time
import zlib
from collections.abc import Generator, Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before JAX is imported: a JAX with GPUs would take them

import hypothesis
import jax
import pytest

from jaxtribute import config
from jaxtribute._src.core.execution import rendezvous
from longest import dealt
from namespaces import Machine, NoRightsError, two_machines
from samples import ALL_CASES, is_chosen
from shares import share, turn

try:
    from jaxtribute._src.addons.testing import leaks
    from jaxtribute._src.addons.testing.shared import SharedRunners
except ModuleNotFoundError:  # where `make fence` tries the core without it
    pytest_plugins = ["without_testing"]
else:
    pytest_plugins = ["jaxtribute.testing.pytest_plugin"]
    # What has been closed may take long to end where the machine is slow.
    leaks.DEADLINE_S = 30.0

config.set_logical_cpu_devices(8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
# Most of the suite's time would go to LLVM, for programs that run once: they are compiled without optimisations (the
# marker `optimized` turns them on), also in processes that tests start, and kept for the next run. Those processes may
# be killed in the middle of a write, so they do not share what is kept.
_UNOPTIMIZED = "JAX_DISABLE_MOST_OPTIMIZATIONS"
os.environ[_UNOPTIMIZED] = "1"
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
# A test that fails for a thread left behind waits for idle ones to end.
rendezvous.IDLE_SECONDS = 0.02

# The first example of a shape compiles, so a time limit for each example would only measure XLA. A commit passes or
# fails each time alike; `--hypothesis-profile=explore` looks for examples that nobody has tried yet.
hypothesis.settings.register_profile(
    "jaxtribute", deadline=None, derandomize=True, max_examples=100 if ALL_CASES else 40
)
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.load_profile("jaxtribute")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases", type=int, metavar="N", help="run at most N cases of each test, evenly spread")
    parser.addoption("--share", type=int, metavar="N", help="run one in N of the chosen tests: each commit others")
    parser.addoption("--slow-share", type=int, metavar="N", help="run one in N of the slow tests: each commit others")


def pytest_configure(config: pytest.Config) -> None:
    """Keeps compiled programs beside what pytest keeps."""
    importlib.import_module("numpy.testing")  # once, for all tests: old versions start a process for it
    jax.config.update("jax_compilation_cache_dir", str(config.rootpath / ".pytest_cache" / "jax"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Says which tests are slow before `-m "not slow"` chooses, and which come first after that."""
    _mark(items)
    left_out = _left_out(items)
    items[:] = [item for item in items if item not in left_out]
    if (parts := config.getoption("--slow-share")) is not None:
        slow = [item for item in items if item.get_closest_marker("slow") is not None]
        left_out = set(slow) - share(slow, parts, turn(config.rootpath))
        items[:] = [item for item in items if item not in left_out]
    yield
    if (most := config.getoption("--cases")) is not None:
        items[:] = _spread(items, most)
    if (parts := config.getoption("--share")) is not None:
        chosen = share(items, parts, turn(config.rootpath))
        items[:] = [item for item in items if item in chosen]
    items[:] = dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")), _RAY_PLACES)


def _mark(items: list[pytest.Item]) -> None:
    """Leaves a few cases of a test with `quick_cases` in the quick suite, evenly spread, the last among them.

    Tests that start Ray are slow, and may wait for others of their kind.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("quick_cases") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
        if item.get_closest_marker("ray") is not None:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(_RAY_WAIT_S + 700))
    for several in cases.values():
        marker = several[0].get_closest_marker("quick_cases")
        count = marker.args[0] if marker is not None else 1
        last = len(several) - 1
        quick = {round(number * last / count) for number in range(1, count + 1)}
        for place, item in enumerate(several):
            if place not in quick:
                item.add_marker(pytest.mark.slow)


def _left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """The slow cases of large products that are not run."""
    found: set[pytest.Item] = set()
    values: dict[tuple[str, str], list[int]] = {}
    for item in items:
        marker = item.get_closest_marker("quick_cases")
        if marker is None or not marker.kwargs.get("half", False):
            continue
        places: list[int] = []
        for name, value in getattr(item, "callspec").params.items():  # noqa: B009 (pytest has no public name for it)
            known = values.setdefault((item.nodeid.partition("[")[0], name), [])
            if id(value) not in known:
                known.append(id(value))
            places.append(known.index(id(value)))
        if item.get_closest_marker("slow") is not None and not is_chosen(*places):
            found.add(item)
    rest = [item for item in items if item.get_closest_marker("quick_cases") is not None and item not in found]
    return found | _beyond_most([item for item in rest if item.get_closest_marker("slow") is not None])


def _beyond_most(items: list[pytest.Item]) -> set[pytest.Item]:
    """Most cases of large products, drawn: what is evenly spread may leave out a value of a factor."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items if not ALL_CASES else ():
        marker = item.get_closest_marker("quick_cases")
        if marker is not None and not marker.kwargs.get("whole", False):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    found: set[pytest.Item] = set()
    for several in cases.values():
        drawn = sorted(several, key=lambda item: zlib.crc32(item.nodeid.encode()))
        found.update(drawn[max(_MOST, len(several) // 3) :])
    return found


def _spread(items: list[pytest.Item], most: int) -> list[pytest.Item]:
    """At most so many cases of each test: the first, and others at equal distances."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return [
        case
        for several in cases.values()
        for place, case in enumerate(several)
        if place == 0 or place * most // len(several) != (place - 1) * most // len(several)
    ]


_MOST = 8
"""Slow cases that each test with `quick_cases` has, unless it is `whole`; of more than three times as many, a third."""
_RAY_WAIT_S = 600
_RAY_PLACES = 2


@pytest.fixture
def machines() -> Generator[tuple[Machine, Machine]]:
    """Two machines that a cable joins; the test is skipped where this process may not make them."""
    try:
        with two_machines() as both:
            yield both
    except NoRightsError as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")


@pytest.fixture(autouse=True)
def few_clusters_of_ray(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Lets two tests of all pytest's processes start Ray at a time: more keep each other from starting within 30 s."""
    if request.node.get_closest_marker("ray") is None:
        yield
        return
    folder = tmp_path_factory.getbasetemp().parent
    end = time.monotonic() + _RAY_WAIT_S
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context((folder / f"ray-{place}.lock").open("w")) for place in range(_RAY_PLACES)]
        while not any(_is_taken(place.fileno()) for place in places):
            assert time.monotonic() < end, f"other tests have kept both places for Ray for {_RAY_WAIT_S} s"
            time.sleep(0.2)
        yield


def _is_taken(descriptor: int) -> bool:
    """Takes a place, until its file is closed; false if another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@pytest.fixture(autouse=True, scope="module")
def collections_stay_fast() -> Iterator[None]:
    """Sets what is there aside: what JAX keeps of thousands of tests makes each collection of garbage take seconds."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def as_compiled_for_users(request: pytest.FixtureRequest) -> Iterator[None]:
    """Full optimisation for tests marked `optimized`, and for the processes that they start."""
    if request.node.get_closest_marker("optimized") is None:
        yield
        return
    jax.config.update("jax_disable_most_optimizations", False)
    del os.environ[_UNOPTIMIZED]
    yield
    os.environ[_UNOPTIMIZED] = "1"
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(autouse=True)
def nothing_stays(no_leaks: None, same_environment: None) -> None:
    """Every test is watched."""


_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"})
_started: list[str] = []


def _note_start(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _STARTS:
        _started.append(f"{event}{arguments[:2]}")


sys.addaudithook(_note_start)


@pytest.fixture(autouse=True)
def only_slow_tests_start_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keeps `make test` fast: whatever starts a process is marked `slow`."""
    _started.clear()
    yield
    if _started and request.node.get_closest_marker("slow") is None:
        pytest.fail(f"the test started a process: {_started[0]}. HINT: mark it `slow`.", pytrace=False)


@pytest.fixture(scope="session")
def multi_process(multi_process: SharedRunners) -> SharedRunners:
    """Processes that tests share; they are as strict as this one."""
    multi_process.environment.update(
        {_UNOPTIMIZED: "1"},
        JAX_NUMPY_DTYPE_PROMOTION="strict",
        JAX_NUMPY_RANK_PROMOTION="raise",
        PYTHONWARNINGS="error",
    )
    return multi_process
