"""Logical CPU devices are set before JAX starts, by a call or by the environment, with errors that teach."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute import config
from jaxtribute._src.core import allocator, backend
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ConfigError
from processes import run_python


@pytest.mark.slow
def test_the_import_starts_no_backend_and_imports_no_extra() -> None:
    code = """
        import sys
        import jaxtribute as jd
        from jaxtribute._src.core import backend
        assert not backend.backend_started()
        assert jd.config.set_logical_cpu_devices
        assert "PJRT_NPROC" not in __import__("os").environ
        print(*({"sklearn", "ray", "keras", "flax", "equinox", "tensorflow", "torch"} & set(sys.modules)))
    """
    assert run_python(code).split() == []


@pytest.mark.slow
def test_a_call_sets_the_devices_before_the_backend_starts() -> None:
    code = """
        import jaxtribute as jd
        from jaxtribute._src.core import allocator, backend
        jd.config.set_logical_cpu_devices(2)
        jd.config.set_logical_cpu_devices(3)
        assert not backend.backend_started()
        import jax
        print(jax.device_count(), allocator.tune_allocator())
        jd.config.set_logical_cpu_devices(3)
        try:
            jd.config.set_logical_cpu_devices(2)
        except jd.errors.ConfigError as error:
            print(error)
    """
    first, second = run_python(code).splitlines()
    assert first.split() == ["3", "True"]
    assert "cannot make 2 logical CPU devices" in second
    assert "already started with 3" in second


@pytest.mark.slow
def test_the_call_wins_over_the_environment_and_the_environment_over_jax() -> None:
    code = """
        import jaxtribute as jd
        from jaxtribute._src.core import backend
        before = backend.configured_cpu_devices()
        jd.config.set_logical_cpu_devices(5)
        import jax
        print(before, jax.device_count())
    """
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_NUM_CPU_DEVICES": "3"}
    assert run_python(code, devices=4, env=flags).split() == ["4", "5"]


@pytest.mark.slow
def test_without_the_allocator() -> None:
    code = """
        import jaxtribute as jd
        jd.config.set_logical_cpu_devices(2, tune_allocator=False)
        from jaxtribute._src.core import allocator, devices
        print(len(devices.default_devices()), allocator.tune_allocator())
    """
    assert run_python(code).split() == ["2", "False"]


@pytest.mark.slow
def test_the_environment_is_refused_after_jax_has_started() -> None:
    output = run_python("import jax; jax.numpy.zeros(3); import jaxtribute", devices=2, status=1)
    assert "ConfigError: JAXTRIBUTE_CPU_DEVICES=2 comes too late: JAX had started, with 1 CPU devices" in output
    assert "HINT: move `import jaxtribute` above" in output


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of devices that are asked for, while nothing is set."""
    numbers: list[int] = []
    monkeypatch.setattr(backend, "request_cpu_devices", numbers.append)
    return numbers


def test_numbers_that_are_integers_are_taken(requested: list[int]) -> None:
    config.set_logical_cpu_devices(4)
    config.set_logical_cpu_devices(np.int64(2))
    assert requested == [4, 2]


@pytest.mark.parametrize("n", ["4", 4.0, None, True])
def test_a_number_of_a_wrong_type(requested: list[int], n: int) -> None:
    with pytest.raises(ArgumentTypeError, match=rf"must be an int, not {n!r} of type {type(n).__name__}. HINT"):
        config.set_logical_cpu_devices(n)
    assert requested == []


@given(n=st.integers(max_value=0))
def test_a_number_below_one(n: int) -> None:
    with pytest.raises(ArgumentError, match=rf"^{n} logical CPU devices cannot be made. HINT: ask for 1 to 16384"):
        config.set_logical_cpu_devices(n)


@pytest.mark.parametrize("value", ["0", "-1", "many", "2.5", "1e3", "²"])
def test_an_environment_that_is_no_number(monkeypatch: pytest.MonkeyPatch, requested: list[int], value: str) -> None:
    monkeypatch.setenv("JAXTRIBUTE_CPU_DEVICES", value)
    with pytest.raises(
        ConfigError, match=rf"JAXTRIBUTE_CPU_DEVICES='{value}' is no whole number from 1 to 16384. HINT"
    ):
        config.apply_environment()
    assert requested == []


@pytest.mark.parametrize(("value", "expected"), [("", []), (" ", []), ("3", [3]), (" 12 ", [12])])
def test_an_environment_that_is_a_number(
    monkeypatch: pytest.MonkeyPatch, requested: list[int], value: str, expected: list[int]
) -> None:
    monkeypatch.setenv("JAXTRIBUTE_CPU_DEVICES", value)
    config.apply_environment()
    assert requested == expected


def test_the_suite_runs_on_eight_devices_at_jax_s_strictest() -> None:
    assert jax.device_count() == 8
    assert allocator.tune_allocator()
    with pytest.raises(ValueError, match="strict"):
        _ = np.int32(1) + jax.numpy.ones(2, "float32")
    with pytest.raises(ValueError, match="rank_promotion"):
        _ = jax.numpy.ones((2, 2)) + jax.numpy.ones(2)
