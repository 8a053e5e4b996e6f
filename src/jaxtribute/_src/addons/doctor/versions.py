"""The versions of what jaxtribute stands on, and whether they are among those that it is made for."""

from __future__ import annotations

import operator
import platform
import re
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from itertools import zip_longest

from jaxtribute._src.addons.doctor.report import Finding, Level, Situation

_NEEDED = ("jaxtribute", "jax", "jaxlib", "numpy", "optax", "grain", "orbax-checkpoint")
_OPTIONAL = ("jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu", "keras", "flax", "ray", "cloudpickle", "kubernetes")
_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+) ?(\[[^\]]*\])? ?\(?(?P<bounds>[^;)]*)[^;]*(;(?P<when>.*))?")
_BOUND = re.compile(r"(>=|<=|==|!=|<|>) ?([\d.]+)")
_HOLDS: dict[str, Callable[[int, int], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_DEVELOPERS = ("'dev'", "'test'", "'lint'", "'docs'")
"""Extras of those who change jaxtribute."""


def check_versions(_: Situation) -> Iterator[Finding]:
    """Lists them, and tells those that jaxtribute is not made for."""
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    yield Finding(Level.FACT, "system", system)
    found = {name: number for name in (*_NEEDED, *_OPTIONAL) if (number := _version(name))}
    yield Finding(Level.FACT, "versions", ", ".join(f"{name} {number}" for name, number in found.items()))
    told: set[str] = set()
    for needed in requires("jaxtribute") or ():
        match = _REQUIREMENT.match(needed)
        if match is None or any(extra in (match["when"] or "") for extra in _DEVELOPERS):
            continue
        name, bounds, number = match["name"], match["bounds"].strip(), _version(match["name"])
        if number and name not in told and not holds(number, bounds):
            told.add(name)
            text = f"{name} {number} is installed, and jaxtribute is made for {name}{bounds}"
            yield Finding(
                Level.WARNING if match["when"] else Level.ERROR, "versions", text, f"pip install '{name}{bounds}'"
            )


def holds(number: str, bounds: str) -> bool:
    """True if a version is within bounds such as `>=0.12.8,<1`; of 1.2rc1 the numbers count, 1.2."""
    return all(_HOLDS[op](_compared(number, bound), 0) for op, bound in _BOUND.findall(bounds))


def _compared(one: str, other: str) -> int:
    """Below zero if a version comes before another one, above if after it; 2 and 2.0 are one."""
    for first, second in zip_longest(_numbers(one), _numbers(other), fillvalue=0):
        if first != second:
            return first - second
    return 0


def _numbers(number: str) -> list[int]:
    match = re.match(r"\d+(\.\d+)*", number)
    return [int(part) for part in match[0].split(".")] if match else []


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
