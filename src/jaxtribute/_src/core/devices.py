"""TensorFlow's device strings and JAX's devices.

Accepted forms, the device type in upper or lower case: `"GPU:0"`, `"/gpu:0"`, `"/device:GPU:0"`, `"/gpu:*"` (any: the
first) and `"/job:worker/replica:0/task:1/device:GPU:0"`. A name always prints in the last form. The job is `localhost`
in a program of one process; with several processes it is `worker`, and the task is JAX's process index.
"""

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax

from jaxtribute._src.core.allocator import tune_allocator
from jaxtribute._src.core.backend import prepare_cpu_backend
from jaxtribute._src.core.types import Device
from jaxtribute.errors import ArgumentError, ArgumentTypeError, DeviceError

_LOCAL_JOB, _WORKER_JOB = "localhost", "worker"
_PART = (
    r"job:(?P<job>[a-zA-Z]\w*)"
    r"|replica:(?P<replica>\d+)"
    r"|task:(?P<task>\d+)"
    r"|device:(?P<long_type>[a-zA-Z]\w*)(?::(?P<long_index>\d+|\*))?"
    r"|(?P<short_type>(?i:cpu|gpu|tpu))(?::(?P<short_index>\d+|\*))?"
)
_FORMS = "'GPU:0', '/gpu:0', '/device:GPU:0' or '/job:worker/replica:0/task:1/device:GPU:0'"

# Set by `alias_devices` alone: canonical names that tests pretend to have, and the devices that stand in.
_aliases: dict[str, str] = {}


# Set by `described_devices` alone: devices that programs are compiled for, in place of those that strategies name.
_described: tuple[Device, ...] = ()


class DeviceSpec(NamedTuple):
    """A device string taken apart; `None` where the string says nothing.

    Source: `tf.DeviceSpec`.
    """

    job: str | None = None
    replica: int | None = None
    task: int | None = None
    device_type: str | None = None
    device_index: int | None = None

    @classmethod
    def parse(cls, text: str) -> "DeviceSpec":
        """Reads a device string.

        Raises:
            ArgumentTypeError: `text` is no string.
            DeviceError: `text` is malformed, or says a thing twice; the message shows the accepted forms.

        Source: `tf.DeviceSpec.from_string`.
        """
        if not isinstance(text, str):
            raise ArgumentTypeError(
                f"a device is a string or a jax.Device, not {text!r} of type {type(text).__name__}. "
                f"HINT: write {_FORMS}."
            )
        parsed: dict[str, Any] = {}
        for part in text.removeprefix("/").split("/"):
            fields = _parse_part(part)
            if not fields or fields.keys() & parsed.keys():
                problem = "says twice" if fields else "is malformed at"
                raise DeviceError(f"the device string {text!r} {problem} {part!r}. HINT: write {_FORMS}.")
            parsed.update(fields)
        return cls(**parsed)

    def to_string(self) -> str:
        """The canonical name; what the string left out is `localhost`, 0, `CPU` and 0, as in TensorFlow."""
        job = self.job or _LOCAL_JOB
        kind = self.device_type or "CPU"
        return f"/job:{job}/replica:{self.replica or 0}/task:{self.task or 0}/device:{kind}:{self.device_index or 0}"

    def __str__(self) -> str:
        return self.to_string()


def resolve_device(device: str | Device) -> Device:
    """The device of that name; a `jax.Device` is returned as it is.

    There is no soft placement: TensorFlow takes `"GPU:7"` on a machine without it, and computes elsewhere.

    Args:
        device: A device string, or a device of JAX. Without an index it is the first of its type; without a job and
            task it is a device of this process.

    Raises:
        ArgumentTypeError: `device` is neither a string nor a device.
        DeviceError: The string is malformed, or no such device exists; the message lists those that do.
    """
    if isinstance(device, Device):
        return device
    spec = DeviceSpec.parse(device)
    _start_backend()
    stand_in = _aliases.get(spec.to_string())
    if stand_in is not None:
        spec = DeviceSpec.parse(stand_in)
    process = _process_index(spec)
    devices = _of_process(_devices_of_type(spec.device_type or "CPU"), process)
    index = spec.device_index or 0
    if (spec.replica or 0) != 0 or index >= len(devices):
        raise DeviceError(
            f"there is no device {device!r}; the devices are {', '.join(available_devices())}. HINT: use one of these, "
            f"or {_instead(spec.device_type or 'CPU', index)}."
        )
    return devices[index]


def device_name(device: Device) -> str:
    """The canonical name of a device, such as `/job:localhost/replica:0/task:0/device:GPU:0`.

    The index counts the devices of that type in their own process.

    Source: `tf.Variable.device`.
    """
    name = _true_name(device)
    return next((alias for alias, stand_in in _aliases.items() if stand_in == name), name)


def available_devices() -> list[str]:
    """The canonical names of all devices, of all processes: CPU devices first, then the default platform's.

    Source: `tf.config.list_logical_devices`.
    """
    _start_backend()
    devices = _devices_of_type("CPU")
    # Where the default platform is the CPU its devices are told once.
    others = [device for device in jax.devices() if device not in devices]
    return list(map(device_name, [*devices, *others]))


def default_devices() -> tuple[Device, ...]:
    """Devices of a strategy that is given none: all accelerators of this process, else all its CPU devices."""
    if _described:
        return _described
    accelerators: list[tuple[str, int, str]] = []
    for name in _aliases:
        spec = DeviceSpec.parse(name)
        if spec.device_type not in (None, "CPU"):
            accelerators.append((spec.device_type, spec.device_index or 0, name))
    if accelerators:
        # By type and number, as JAX lists devices, in whatever order the aliases were written.
        return tuple(resolve_device(name) for *_, name in sorted(accelerators))
    _start_backend()
    return tuple(jax.local_devices())


def first_devices(count: int) -> tuple[Device, ...]:
    """Returns the first `count` of the default devices, or all that are described.

    Raises:
      DeviceError: there are fewer.
    """
    devices = default_devices()
    if count > len(devices) and not _described:
        platform = devices[0].platform.upper()
        raise DeviceError(
            f"{count} devices are asked for, and there are {len(devices)}: {', '.join(map(device_name, devices))}. "
            f"HINT: ask for at most {len(devices)}, or {_instead(platform, count - 1)}."
        )
    return devices if _described else devices[:count]


@contextmanager
def described_devices(devices: Sequence[Device]) -> Generator[None]:
    """Gives every strategy made within these devices, whichever it names: they are only described, nothing runs.

    Args:
      devices: as a compiler describes them, such as those of a TPU slice that is not there; or devices of this
        process, on which then nothing runs.
    """
    global _described
    outer, _described = _described, tuple(devices)
    try:
        yield
    finally:
        _described = outer


def are_described() -> bool:
    """True if strategies take devices that are only described."""
    return bool(_described)


def is_described(device: Device) -> bool:
    """True if programs are compiled for the device, and none runs on it."""
    return device in _described or type(device.client).__name__ == "CompileOnlyPyClient"


def strategy_devices(named: Sequence[str | Device]) -> tuple[Device, ...]:
    """The devices that a strategy is to take: those named, or `described_devices` in their place.

    Raises:
      DeviceError: one of those named does not exist.
    """
    return _described or tuple(map(resolve_device, named))


class AliasedDevices:
    """The aliases that `alias_devices` has set; a `with` block takes them back at its end.

    Args:
        outer: The aliases before.
    """

    def __init__(self, outer: dict[str, str]) -> None:
        self._outer = outer

    def __enter__(self) -> None:
        """Does nothing: the aliases hold already."""

    def __exit__(self, *error: object) -> None:
        """Restores the aliases before."""
        global _aliases
        _aliases = self._outer


def alias_devices(aliases: Mapping[str, str]) -> AliasedDevices:
    """Pretends, in a test, that other devices exist: a stand-in takes and bears the given name.

    It lets an example written for two GPUs run, and print what it would print there, on logical CPU devices. As a
    statement it holds for the rest of the program, in a `with` line until the end of the block:

        with jd.config.alias_devices({"GPU:0": "CPU:1", "GPU:1": "CPU:2"}):
            jd.MirroredStrategy(["GPU:0", "GPU:1"])

    The names resolve to their stand-ins in every thread, a stand-in's name prints as its alias, and aliased
    accelerators are the default devices. Aliases replace those before them: none at all, `{}`, takes them back.

    Args:
        aliases: Names to devices that exist, all device strings.

    Raises:
        DeviceError: A string is malformed, or a stand-in does not exist.
        ArgumentError: Two names share a stand-in.
    """
    global _aliases
    outer = _aliases
    # Stand-ins are looked up by their own names, not by those of earlier aliases.
    _aliases = {}
    wanted = outer
    try:
        true_names = {DeviceSpec.parse(name).to_string(): _true_name(resolve_device(d)) for name, d in aliases.items()}
        if len(set(true_names.values())) < len(true_names):
            raise ArgumentError(
                f"two names in {dict(aliases)!r} stand for one device. HINT: give each name a stand-in of its own."
            )
        wanted = true_names
    finally:
        _aliases = wanted
    return AliasedDevices(outer)


def _instead(device_type: str, index: int) -> str:
    """Advice that makes a missing device exist, or another stand for it."""
    split = "set JAXTRIBUTE_CPU_DEVICES=n, or call jd.config.set_logical_cpu_devices(n) first, to split the CPU into n"
    if device_type == "CPU":
        return split
    alias = f'{{"{device_type}:{index}": "CPU:{index}"}}'
    missing = f" ({split})" if index >= len(_devices_of_type("CPU")) else ""
    return f"let a CPU device stand for it while you try the program: jd.config.alias_devices({alias}){missing}"


def _start_backend() -> None:
    prepare_cpu_backend()
    # Only now is it known that there is no accelerator, and that even a single CPU device computes here.
    if jax.default_backend() == "cpu":
        tune_allocator()


def _parse_part(part: str) -> dict[str, Any]:
    """The fields that one part between slashes says; empty if it is malformed."""
    match = re.fullmatch(_PART, part)
    if match is None:
        return {}
    if match["job"] is not None:
        return {"job": match["job"]}
    for field in ("replica", "task"):
        if match[field] is not None:
            return {field: int(match[field])}
    kind, index = match["long_type"] or match["short_type"], match["long_index"] or match["short_index"] or "*"
    return {"device_type": kind.upper(), "device_index": None if index == "*" else int(index)}


def _true_name(device: Device) -> str:
    described = device in _described
    known = _described if described else device.client.devices()
    siblings = _of_process(known, device.process_index)
    job = _WORKER_JOB if described or jax.process_count() > 1 else _LOCAL_JOB
    return DeviceSpec(job, 0, device.process_index, device.platform.upper(), siblings.index(device)).to_string()


def _of_process(devices: Sequence[Device], process: int | None) -> list[Device]:
    """Those of some devices that a process has, in order; none if there is no such process."""
    return [device for device in devices if device.process_index == process]


def _devices_of_type(device_type: str) -> list[Device]:
    try:
        return jax.devices(device_type.lower())
    except RuntimeError:
        return []  # no such platform here


def _process_index(spec: DeviceSpec) -> int | None:
    """The process that the job and task of a name stand for; None if there is no such job."""
    here = jax.process_index()
    if spec.job in (None, _WORKER_JOB):
        return here if spec.task is None else spec.task
    if spec.job == _LOCAL_JOB:
        return here if spec.task in (None, 0) else None
    return None
