"""The kind of accelerator that JAX computes on, asked without starting JAX where it can only find CPUs."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, cast

import jax

from jaxtribute.extending import visible_gpus

_PLUGINS = "jax_plugins"
_TOLD_BY = ("PJRT_NAMES_AND_LIBRARY_PATHS", "TPU_LIBRARY_PATH")
_WINDOWS_GPU = Path("/dev/dxg")


def accelerator_kind() -> str:
    """The kind of the devices that JAX computes on, such as `"GPU"`; empty if they are CPUs.

    A program may ask whether there is a GPU, and split its CPU if there is none: JAX must not have started then. It is
    started if only that tells, because there is a plugin for an accelerator.
    """
    if not _may_find_one():
        return ""
    kind = jax.default_backend().upper()
    return "" if kind == "CPU" else kind


def _may_find_one() -> bool:
    """True if JAX could find an accelerator when it starts."""
    if platforms := _platforms():
        return platforms.split(",")[0].strip() != "cpu"
    return find_spec("libtpu") is not None or any(map(os.environ.get, _TOLD_BY)) or any(map(_has_device, _plugins()))


def _platforms() -> str | None:
    """Platforms that JAX is told, the first of which is the default; none if it looks for itself."""
    return cast(Any, jax.config).jax_platforms


def _plugins() -> list[str]:
    """The names of JAX's plugins in this Python, which JAX finds by both ways."""
    folder = find_spec(_PLUGINS)
    places = [] if folder is None else list(folder.submodule_search_locations or ())
    return [one.name for one in iter_modules(places)] + [one.name for one in entry_points(group=_PLUGINS)]


def _has_device(plugin: str) -> bool:
    """True unless the plugin is CUDA's and there is no GPU of NVIDIA's, which JAX then does not look for either."""
    return "cuda" not in plugin or bool(visible_gpus(os.environ)) or _WINDOWS_GPU.exists()
