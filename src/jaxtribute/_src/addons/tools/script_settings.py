"""Settings that a script makes in its environment before it imports JAX or this library.

The command that runs the script has imported both, which read them then; so they are applied as the script makes them.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Generator
from typing import Any, cast

import jax

from jaxtribute.config import set_logical_cpu_devices
from jaxtribute.errors import ArgumentError, ConfigError

_DEVICES = "JAXTRIBUTE_CPU_DEVICES"
_FLAG = re.compile(r"--xla_force_host_platform_device_count[=\s](\d+)")
_TRUE = {"y", "yes", "t", "true", "on", "1"}
_FALSE = {"n", "no", "f", "false", "off", "0"}


@contextlib.contextmanager
def settings_heard() -> Generator[None]:
    """Applies what a script within writes into `os.environ`, or says on standard error that it comes too late."""
    environment = os.environ
    kind = type(environment)

    class Heard(kind):
        def __setitem__(self, name: str, value: str) -> None:
            super().__setitem__(name, value)
            _apply(name, value)

    environment.__class__ = Heard
    try:
        yield
    finally:
        environment.__class__ = kind


def _apply(name: str, value: str) -> None:
    try:
        if name == _DEVICES and value.strip():
            set_logical_cpu_devices(_count(value))
        elif name == "XLA_FLAGS" and (counts := _FLAG.findall(value)):
            set_logical_cpu_devices(int(counts[-1]))
        elif name.startswith("JAX_"):
            _configure(name.lower(), value)
    # What JAX raises where it has started, or does not know the value.
    except (ArgumentError, ConfigError, RuntimeError, ValueError) as error:
        hint = "" if "HINT" in str(error) else " HINT: set it in the shell, before the command."
        sys.stderr.write(f"jaxtribute: the program sets {name}={value!r}, which is not heard: {error}{hint}\n")


def _count(value: str) -> int:
    if not value.strip().isdecimal():
        raise ValueError("it is no number of devices.")
    return int(value)


def _configure(name: str, value: str) -> None:
    """Gives JAX a setting of the environment, in the type that the setting has."""
    config = cast("Any", jax.config)
    if name not in config.values:
        return
    current, text = config.values[name], value.strip()
    if isinstance(current, bool):
        if text.lower() not in _TRUE | _FALSE:
            raise ValueError("it is neither true nor false.")
        config.update(name, text.lower() in _TRUE)
    else:
        config.update(name, type(current)(text) if isinstance(current, int | float) else text)
