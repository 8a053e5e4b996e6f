"""The thread pool fits the devices, whoever configured them, and really reaches XLA."""

import os
import textwrap
from typing import cast

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute._src.core import backend
from jaxtribute.errors import ConfigError
from processes import run_python

# Starts JAX and prints its devices, the variable, and the threads that XLA really made. A thread has its name only once
# it has run, which may be a while after it was made.
REPORT = textwrap.dedent("""
    import os, pathlib, time, jax
    devices = jax.device_count("cpu")
    jax.block_until_ready(jax.jit(lambda x: x @ x)(jax.numpy.ones((256, 256))))
    pool = os.environ.get("PJRT_NPROC")
    threads, end = 0, time.monotonic() + 120
    while threads < int(pool or len(os.sched_getaffinity(0))) and time.monotonic() < end:
        tasks = pathlib.Path("/proc/self/task").iterdir()
        threads = sum("XLAEigen" in task.joinpath("comm").read_text() for task in tasks)
    print(devices, pool, threads)
""")
CORES = len(os.sched_getaffinity(0))


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with nothing in it, on two cores."""
    monkeypatch.setattr(backend, "_cores", lambda: 2)
    monkeypatch.setattr("os.environ", {})
    return cast("dict[str, str]", os.environ)


class TestInAProcessOfItsOwn:
    @pytest.mark.slow
    @pytest.mark.parametrize("devices", [2, 8])
    def test_the_pool_has_two_threads_a_device(self, devices: int) -> None:
        report = run_python("import jaxtribute\n" + REPORT, devices=devices)
        assert report.split() == expected(devices)

    @pytest.mark.slow
    def test_one_device_keeps_the_pool_of_jax(self) -> None:
        assert run_python("import jaxtribute\n" + REPORT, devices=1).split() == ["1", "None", str(CORES)]

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "env",
        [
            {"XLA_FLAGS": "--xla_force_host_platform_device_count=2 --xla_force_host_platform_device_count=5"},
            {"JAX_NUM_CPU_DEVICES": "5", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"},
        ],
    )
    def test_devices_configured_by_jax_s_own_means_get_it_at_import(self, env: dict[str, str]) -> None:
        assert run_python("import jaxtribute\n" + REPORT, env=env).split() == expected(5)

    @pytest.mark.slow
    def test_devices_configured_after_the_import_get_it_when_a_strategy_prepares(self) -> None:
        code = """
            import jaxtribute, jax
            jax.config.update("jax_num_cpu_devices", 5)
            jaxtribute.config.prepare_cpu_backend()
        """
        assert run_python(textwrap.dedent(code) + REPORT).split() == expected(5)

    @pytest.mark.slow
    def test_a_larger_pool_of_the_user_stays(self) -> None:
        report = run_python("import jaxtribute\n" + REPORT, devices=4, env={"PJRT_NPROC": "20"})
        assert report.split() == ["4", "20", "20"]


def expected(devices: int) -> list[str]:
    threads = max(2 * devices, CORES)
    return [str(devices), str(threads) if threads > CORES else "None", str(threads)]


class TestFitThreadPool:
    @given(devices=st.integers(1, 64), cores=st.integers(1, 128))
    def test_every_device_gets_two_threads_and_no_core_is_lost(self, devices: int, cores: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.environ", {})
            patch.setattr(backend, "_cores", lambda: cores)
            backend.fit_thread_pool(devices)
            threads = int(os.environ.get("PJRT_NPROC", cores))
        assert threads >= cores
        assert devices == 1 or threads >= 2 * devices
        assert threads in (cores, 2 * devices)

    def test_a_larger_value_of_the_user_stays(self, environment: dict[str, str]) -> None:
        environment["PJRT_NPROC"] = "40"
        backend.fit_thread_pool(4)
        backend.fit_thread_pool(1)
        assert environment["PJRT_NPROC"] == "40"
        assert "JAXTRIBUTE_PJRT_NPROC" not in environment

    @pytest.mark.parametrize("value", ["3", "", "many"])
    def test_a_value_with_which_collectives_would_hang_does_not(self, environment: dict[str, str], value: str) -> None:
        environment["PJRT_NPROC"] = value
        backend.fit_thread_pool(4)
        assert environment["PJRT_NPROC"] == "8"

    def test_what_a_parent_process_chose_is_chosen_again(self, environment: dict[str, str]) -> None:
        backend.fit_thread_pool(8)
        assert environment["PJRT_NPROC"] == "16"
        backend.fit_thread_pool(4)
        assert environment["PJRT_NPROC"] == "8"
        backend.fit_thread_pool(1)
        assert environment.keys().isdisjoint({"PJRT_NPROC", "JAXTRIBUTE_PJRT_NPROC"})

    def test_cores_without_affinity(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr("os.sched_getaffinity")
        monkeypatch.setattr("os.cpu_count", lambda: None)
        monkeypatch.setattr("os.environ", {})
        backend.fit_thread_pool(2)
        assert os.environ["PJRT_NPROC"] == "4"


class TestInThisProcess:
    """The backend of the test process runs with eight devices."""

    @pytest.fixture(autouse=True)
    def started(self) -> None:
        assert jax.device_count() == 8

    def test_the_backend_has_started(self) -> None:
        assert backend.backend_started()
        assert backend.configured_cpu_devices() == 8

    def test_the_same_number_of_devices_again_is_fine(self) -> None:
        backend.request_cpu_devices(8)

    def test_another_number_is_too_late(self) -> None:
        with pytest.raises(ConfigError, match=r"cannot make 4 .* already started with 8\. HINT: .*CPU_DEVICES=4"):
            backend.request_cpu_devices(4)

    def test_to_prepare_again_changes_nothing(self) -> None:
        before = dict(os.environ)
        backend.prepare_cpu_backend()
        assert dict(os.environ) == before

    def test_a_platform_without_cpu_has_no_cpu_devices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(backend: str) -> None:
            raise RuntimeError(f"Unknown backend {backend}")

        monkeypatch.setattr("jax.local_devices", refuse)
        assert backend.configured_cpu_devices() == 0


def test_what_bits_depend_on(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = [backend.arithmetic()]
    assert found[0] == backend.arithmetic()
    assert "'threads': '2'" in found[0]
    environment["PJRT_NPROC"] = "8"
    found.append(backend.arithmetic())
    environment["XLA_FLAGS"] = "--xla_cpu_enable_fast_math=true"
    found.append(backend.arithmetic())
    monkeypatch.setattr("platform.machine", lambda: "another")
    found.append(backend.arithmetic())
    assert len(set(found)) == 4
