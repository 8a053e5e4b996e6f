"""The allocator is tuned once, only where it can be, and not where the user said no."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.core import allocator
from jaxtribute.errors import ConfigError
from processes import run_python

# Frees and takes 64 MB again and again; prints the page faults that this costs after the first time.
FAULTS = """
    import ctypes, resource
    from jaxtribute._src.core import allocator
    print(allocator.tune_allocator())
    libc = ctypes.CDLL(None)
    libc.prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: a fault is a small page, whatever the machine prefers
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    def touch():
        buffer = libc.malloc(64 << 20)
        ctypes.memset(buffer, 1, 64 << 20)
        libc.free(buffer)
    touch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        touch()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "_decided", None)


@pytest.mark.slow
def test_a_tuned_process_keeps_freed_memory() -> None:
    tuned, faults = run_python(FAULTS).split()
    assert tuned == "True"
    assert int(faults) < 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    "env", [{"JAXTRIBUTE_TUNE_ALLOCATOR": "0"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}]
)
def test_an_untuned_process_gives_it_back(env: dict[str, str]) -> None:
    tuned, faults = run_python(FAULTS, env=env).split()
    assert tuned == "False"
    assert int(faults) > 10 * (64 << 20) // 4096 // 2


def test_what_the_user_set_for_glibc_stays(monkeypatch: pytest.MonkeyPatch, undecided: None) -> None:
    calls: list[tuple[int, int]] = []

    # ctypes sets attributes on the function, which a function of Python allows.
    def mallopt(parameter: int, value: int) -> int:
        calls.append((parameter, value))
        return 1

    def open_library(name: None) -> SimpleNamespace:
        return SimpleNamespace(mallopt=mallopt)

    monkeypatch.setattr("ctypes.CDLL", open_library)
    monkeypatch.setenv("MALLOC_TOP_PAD_", "65536")
    assert allocator.tune_allocator()
    assert sorted(parameter for parameter, _ in calls) == [-3, -1]
    assert all(0 < value < 2**31 for _, value in calls), "mallopt takes C ints"
    assert allocator.tune_allocator()
    assert len(calls) == 2, "the second call does nothing"


def test_the_first_decision_of_a_process_stands(undecided: None) -> None:
    allocator.leave_allocator_alone()
    assert allocator.tune_allocator() is False


def test_another_platform_is_left_alone(monkeypatch: pytest.MonkeyPatch, undecided: None) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert allocator.tune_allocator() is False


@pytest.mark.parametrize("answer", [None, "musl 1.2", ValueError("unrecognized configuration name")])
def test_another_c_library_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, undecided: None, answer: str | ValueError | None
) -> None:
    def confstr(name: str) -> str | None:
        if isinstance(answer, ValueError):
            raise answer
        return answer

    monkeypatch.setattr("os.confstr", confstr)
    assert allocator.tune_allocator() is False


@pytest.mark.parametrize(("value", "wanted"), [("1", True), (" Yes ", True), ("off", False), ("FALSE", False)])
def test_the_switch(monkeypatch: pytest.MonkeyPatch, value: str, wanted: bool) -> None:
    monkeypatch.setenv("JAXTRIBUTE_TUNE_ALLOCATOR", value)
    assert allocator.wanted_by_environment() is wanted


@given(value=st.text("maybe 2-", min_size=2))
def test_a_switch_that_is_neither_true_nor_false_is_an_error(value: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAXTRIBUTE_TUNE_ALLOCATOR", value)
        with pytest.raises(ConfigError, match=r"neither true nor false. HINT: set it to 0 or 1") as caught:
            allocator.wanted_by_environment()
        assert repr(value) in str(caught.value)
