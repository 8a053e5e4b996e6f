"""TensorFlow's device strings name JAX's devices, and print as TensorFlow prints them."""

import json
import re
import threading
from types import SimpleNamespace
from typing import Any, cast

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute import config
from jaxtribute._src.core import devices
from jaxtribute._src.core.devices import DeviceSpec, available_devices, default_devices, device_name, resolve_device
from jaxtribute.errors import ArgumentError, ArgumentTypeError, DeviceError
from processes import run_python

PREFIX = "/job:localhost/replica:0/task:0/device:"


class TestDeviceSpec:
    @pytest.mark.parametrize(
        ("text", "canonical"),
        [
            ("/cpu:0", f"{PREFIX}CPU:0"),
            ("GPU:0", f"{PREFIX}GPU:0"),
            ("/gpu:0", f"{PREFIX}GPU:0"),
            ("/device:GPU:1", f"{PREFIX}GPU:1"),
            ("device:TPU:2", f"{PREFIX}TPU:2"),
            ("/gpu:*", f"{PREFIX}GPU:0"),
            ("/device:GPU:*", f"{PREFIX}GPU:0"),
            ("Cpu", f"{PREFIX}CPU:0"),
            ("/device:METAL:0", f"{PREFIX}METAL:0"),
            ("/job:worker/replica:0/task:1/device:CPU:0", "/job:worker/replica:0/task:1/device:CPU:0"),
            ("/job:worker/task:1/gpu:3", "/job:worker/replica:0/task:1/device:GPU:3"),
            ("/job:ps/replica:2", "/job:ps/replica:2/task:0/device:CPU:0"),
        ],
    )
    def test_the_canonical_form(self, text: str, canonical: str) -> None:
        assert DeviceSpec.parse(text).to_string() == canonical
        assert str(DeviceSpec.parse(canonical)) == canonical

    def test_what_a_string_leaves_out_is_none(self) -> None:
        assert DeviceSpec.parse("gpu") == DeviceSpec(device_type="GPU")
        assert DeviceSpec.parse("/gpu:*") == DeviceSpec(device_type="GPU")
        assert DeviceSpec.parse("/task:3/cpu:1") == DeviceSpec(task=3, device_type="CPU", device_index=1)

    @pytest.mark.parametrize(
        ("text", "part"),
        [
            ("", ""),
            ("/", ""),
            ("gpu-1", "gpu-1"),
            ("GPU:-1", "GPU:-1"),
            ("GPU:0 ", "GPU:0 "),
            ("GPU:0:1", "GPU:0:1"),
            ("FOO:0", "FOO:0"),
            ("//cpu:0", ""),
            ("/cpu:0/", ""),
            ("/job:worker/task:one", "task:one"),
            ("/job:/cpu:0", "job:"),
            ("/replica:0/device:0", "device:0"),
        ],
    )
    def test_a_malformed_string_shows_the_accepted_forms(self, text: str, part: str) -> None:
        with pytest.raises(DeviceError) as caught:
            DeviceSpec.parse(text)
        message = str(caught.value)
        assert f"the device string {text!r} is malformed at {part!r}. HINT: write 'GPU:0', '/gpu:0'" in message

    @pytest.mark.parametrize("text", ["/cpu:0/gpu:1", "/cpu:0/device:CPU:0", "/task:1/task:1", "/job:a/job:b"])
    def test_a_thing_said_twice(self, text: str) -> None:
        with pytest.raises(DeviceError, match="says twice"):
            DeviceSpec.parse(text)

    def test_another_type(self) -> None:
        with pytest.raises(ArgumentTypeError, match=r"a string or a jax\.Device, not 0 of type int\. HINT"):
            DeviceSpec.parse(cast(str, 0))

    @pytest.mark.slow
    @given(
        job=st.from_regex(r"[a-z]\w*", fullmatch=True),
        numbers=st.tuples(*[st.integers(0, 10**6)] * 3),
        kind=st.sampled_from(["CPU", "GPU", "TPU"]),
    )
    def test_to_string_and_parse_are_inverse(self, job: str, numbers: tuple[int, int, int], kind: str) -> None:
        replica, task, index = numbers
        spec = DeviceSpec(job, replica, task, kind, index)
        assert DeviceSpec.parse(spec.to_string()) == spec

    @given(st.text("/:*cpugtask01 job", max_size=20))
    def test_any_string_parses_or_is_a_device_error(self, text: str) -> None:
        try:
            spec = DeviceSpec.parse(text)
        except DeviceError:
            return
        canonical = spec.to_string()
        assert DeviceSpec.parse(canonical).to_string() == canonical


class TestResolveDevice:
    @pytest.mark.parametrize("n", range(8))
    def test_each_logical_device_has_a_name(self, n: int) -> None:
        device = jax.devices()[n]
        assert resolve_device(f"CPU:{n}") == device
        assert device_name(device) == f"{PREFIX}CPU:{n}"
        assert resolve_device(device_name(device)) == device

    def test_a_device_of_jax_is_itself(self) -> None:
        device = jax.devices()[3]
        assert resolve_device(device) is device

    @pytest.mark.parametrize(
        "text", ["cpu", "/cpu:*", "/job:worker/cpu:0", "/job:worker/task:0", "/task:0/cpu:0", "/replica:0"]
    )
    def test_the_first_device_of_this_process(self, text: str) -> None:
        assert resolve_device(text) == jax.devices()[0]

    @pytest.mark.parametrize(
        "text",
        [
            "CPU:8",
            "GPU:0",
            "/device:FOO:0",
            "/job:ps/cpu:0",
            "/job:worker/task:1/cpu:0",
            "/job:localhost/task:1/cpu:0",
            "/replica:1/cpu:0",
        ],
    )
    def test_a_device_that_does_not_exist_lists_those_that_do(self, text: str) -> None:
        with pytest.raises(DeviceError) as caught:
            resolve_device(text)
        message = str(caught.value)
        assert f"there is no device {text!r}; the devices are {PREFIX}CPU:0, {PREFIX}CPU:1, " in message
        assert "CPU:7. HINT: use one of these" in message

    @pytest.mark.slow
    def test_it_prepares_the_backend_that_it_starts(self) -> None:
        code = """
            from jaxtribute._src.core import allocator, devices
            import jax, os
            jax.config.update("jax_num_cpu_devices", 40)
            print(devices.resolve_device("cpu:39").id, os.environ["PJRT_NPROC"], allocator.tune_allocator())
        """
        assert run_python(code).split() == ["39", "80", "True"]

    @pytest.mark.slow
    def test_the_allocator_is_tuned_for_a_single_device_too(self) -> None:
        code = """
            from jaxtribute._src.core import allocator, devices
            tuned = []
            devices.tune_allocator = lambda: tuned.append(True)
            devices.resolve_device("cpu:0")
            print(tuned)
        """
        assert run_python(code) == "[True]\n"


class TestLists:
    def test_all_devices(self) -> None:
        assert available_devices() == [f"{PREFIX}CPU:{n}" for n in range(8)]
        assert default_devices() == tuple(jax.devices())

    def test_accelerators_come_first_where_there_are_any(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cpu, gpus = fake_devices(0, "cpu", 1), fake_devices(0, "gpu", 2)
        pretend(monkeypatch, gpus, {"cpu": cpu, "gpu": gpus})
        assert available_devices() == [f"{PREFIX}CPU:0", f"{PREFIX}GPU:0", f"{PREFIX}GPU:1"]
        assert default_devices() == tuple(gpus)
        assert resolve_device("gpu:1") == gpus[1]
        assert resolve_device("cpu:0") == cpu[0]

    def test_several_processes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        both = fake_devices(0, "cpu", 2) + fake_devices(1, "cpu", 2)
        for device in both:
            device.client.devices = lambda: both
        pretend(monkeypatch, both, {"cpu": both}, process=1, processes=2)
        assert [name.removeprefix("/job:worker/replica:0/") for name in available_devices()] == [
            "task:0/device:CPU:0",
            "task:0/device:CPU:1",
            "task:1/device:CPU:0",
            "task:1/device:CPU:1",
        ]
        assert resolve_device("cpu:1") == both[3]
        assert resolve_device("/job:localhost/replica:0/task:0/cpu:1") == both[3]
        assert resolve_device("/job:worker/task:0/cpu:1") == both[1]
        assert resolve_device("/task:1/cpu:0") == both[2]
        assert default_devices() == tuple(both[2:])
        with pytest.raises(DeviceError, match="there is no device '/job:worker/task:2/cpu:0'"):
            resolve_device("/job:worker/task:2/cpu:0")


class TestAliasDevices:
    ALIASES = {"/gpu:0": "CPU:1", "GPU:1": "/cpu:2"}  # noqa: RUF012

    def test_a_name_is_off_by_default_and_after_the_block(self) -> None:
        with config.alias_devices(self.ALIASES):
            resolve_device("GPU:0")
        with pytest.raises(DeviceError):
            resolve_device("GPU:0")
        assert device_name(jax.devices()[1]) == f"{PREFIX}CPU:1"

    def test_a_stand_in_takes_and_bears_the_name(self) -> None:
        with config.alias_devices(self.ALIASES):
            assert resolve_device("/device:GPU:1") == jax.devices()[2]
            assert device_name(jax.devices()[2]) == f"{PREFIX}GPU:1"
            assert device_name(jax.devices()[0]) == f"{PREFIX}CPU:0"
            assert available_devices()[:4] == [f"{PREFIX}{name}" for name in ("CPU:0", "GPU:0", "GPU:1", "CPU:3")]

    def test_aliased_accelerators_are_the_default_devices(self) -> None:
        with config.alias_devices({"GPU:10": "CPU:3", "GPU:2": "CPU:4", "CPU:0": "CPU:5"}):
            assert default_devices() == (jax.devices()[4], jax.devices()[3])

    def test_every_thread_sees_it(self) -> None:
        found: list[jax.Device] = []
        with config.alias_devices(self.ALIASES):
            thread = threading.Thread(target=lambda: found.append(resolve_device("GPU:0")))
            thread.start()
            thread.join()
        assert found == [jax.devices()[1]]

    def test_an_inner_block_replaces_the_outer_one(self) -> None:
        with config.alias_devices(self.ALIASES):
            with config.alias_devices({"GPU:0": "CPU:2"}):
                assert resolve_device("GPU:0") == jax.devices()[2]
                with pytest.raises(DeviceError):
                    resolve_device("GPU:1")
            assert resolve_device("GPU:0") == jax.devices()[1]

    def test_a_stand_in_that_does_not_exist(self) -> None:
        with pytest.raises(DeviceError, match="there is no device 'CPU:9'"), config.alias_devices({"GPU:0": "CPU:9"}):
            pass
        assert default_devices() == tuple(jax.devices())

    def test_as_a_statement_it_holds_until_it_is_taken_back(self) -> None:
        config.alias_devices(self.ALIASES)
        try:
            assert resolve_device("GPU:0") == jax.devices()[1]
            with config.alias_devices({"GPU:0": "CPU:2"}):
                assert resolve_device("GPU:0") == jax.devices()[2]
            assert resolve_device("GPU:0") == jax.devices()[1]
            with pytest.raises(DeviceError):
                config.alias_devices({"GPU:0": "CPU:9"})
            assert resolve_device("GPU:0") == jax.devices()[1]
        finally:
            config.alias_devices({})
        assert default_devices() == tuple(jax.devices())

    @pytest.mark.parametrize("name", ["/gpu:0", "TPU:1", "/job:localhost/device:GPU:0"])
    def test_an_accelerator_that_is_not_there_is_told_about_them(self, name: str) -> None:
        with pytest.raises(DeviceError, match=r"HINT: .* jd\.config\.alias_devices\((.*)\)\.") as raised:
            resolve_device(name)
        found = re.search(r"alias_devices\((.*)\)\.", str(raised.value))
        assert found
        with config.alias_devices(json.loads(found[1])):
            assert resolve_device(name).platform == "cpu"

    def test_where_there_are_too_few_cpus_too(self) -> None:
        with pytest.raises(DeviceError, match=r"alias_devices\(.*set_logical_cpu_devices"):
            resolve_device("GPU:99")

    def test_one_stand_in_for_two_names(self) -> None:
        aliases = {"GPU:0": "CPU:1", "GPU:1": "cpu:1"}
        with pytest.raises(ArgumentError, match=r"stand for one device\. HINT"), config.alias_devices(aliases):
            pass


def fake_devices(process: int, platform: str, count: int) -> list[Any]:
    made: list[Any] = [SimpleNamespace(platform=platform, process_index=process) for _ in range(count)]
    for device in made:
        device.client = SimpleNamespace(devices=lambda: made)
    return made


def pretend(
    monkeypatch: pytest.MonkeyPatch,
    default: list[Any],
    by_platform: dict[str, list[Any]],
    process: int = 0,
    processes: int = 1,
) -> None:
    """Makes JAX show other devices than it has."""

    def of(platform: str | None = None) -> list[Any]:
        return default if platform is None else by_platform[platform]

    fake = SimpleNamespace(
        Device=jax.Device,
        devices=of,
        local_devices=lambda: [d for d in default if d.process_index == process],
        process_index=lambda: process,
        process_count=lambda: processes,
        default_backend=lambda: default[0].platform,
    )
    monkeypatch.setattr(devices, "jax", fake)
