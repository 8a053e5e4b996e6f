"""`jd.experimental.Automatic`: the strategy that a search has found, or finds."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

import jaxtribute as jd
from jaxtribute._src.addons.fitting.asking import SEARCHING, SECONDS, fit
from jaxtribute._src.addons.fitting.candidates import Outcome
from jaxtribute._src.addons.launcher.compilation_cache import default_directory
from jaxtribute._src.addons.memory.amounts import checked, known_as, memory_stats
from jaxtribute._src.addons.tools.user_scripts import modules_beside
from jaxtribute._src.regular_files import read_regular
from jaxtribute.errors import ArgumentError, ConfigError
from jaxtribute.extending import Callers, parse_json
from jaxtribute.typing import Device, Foreign

_LOG = logging.getLogger(__name__)
_MATTER = "jaxtribute jax jaxlib libtpu jax-cuda12-plugin jax-cuda13-plugin optax keras flax equinox".split()
"""Packages of which other versions may come to another choice."""


def Automatic(  # noqa: N802  # a strategy, as those that are classes
    choice: str | os.PathLike[str] | None = None,
    *,
    budget: int | str | None = None,
    layout: Foreign = None,
    seconds: float = SECONDS,
) -> jd.Strategy:
    """Makes the strategy with which the running script fits this machine's devices and is fast there.

    The first time, the script is searched as by `jaxtribute plan --fit`: a process of its own runs it up to its first
    step under one strategy after the other, and compiles that step; nothing runs. The choice is kept beside the
    compiled programs (`jd.config.enable_compilation_cache`), under the script's path and text, the modules beside it
    that are loaded by then, its arguments, the devices and the versions: the next start takes it from there. It is a
    `jd.MirroredStrategy` or a `jd.FullyShardedStrategy`, whose replicas may have several devices, and a budget for what
    backward passes keep (`jd.config.set_memory_budget`), if there has to be one.

    Args:
      choice: a file that `jaxtribute plan --fit --save` wrote; None to search, or to take what was found before. Made
        for other devices, it is applied with a warning.
      budget: what a step may take of each device: bytes, or a text such as `"12GiB"`; None for all.
      layout: how variables lie on the devices of a replica; None for what was found.
      seconds: after which the search begins no further program.

    Raises:
      ArgumentError: the file holds no choice, nothing of what was tried fits, or the devices have no name for `plan`.
      ConfigError: there is no script, or several processes train together.

    Examples:
      >>> strategy = jd.experimental.Automatic("choice.json")  # doctest: +SKIP

    Source: jaxtribute.
    """
    if os.environ.get(SEARCHING):
        return jd.MirroredStrategy(layout=layout)  # whatever a search puts in its place
    if choice is not None:
        chosen = Outcome.read(_read(Path(choice)))
        strategy = applied(chosen, layout)
        _check_devices(chosen.topology, strategy.extended.mesh.devices, Path(choice))
        return strategy
    if jax.distributed.is_initialized() or os.environ.get("TF_CONFIG"):
        raise ConfigError(
            f"Automatic searches for one process, and this is one of several (TF_CONFIG is "
            f"{os.environ.get('TF_CONFIG', 'not set')!r}). HINT: run jaxtribute plan --fit for the whole cluster, "
            "and write the lines that it prints."
        )
    amount = checked(budget) if budget is not None else None
    if isinstance(amount, str):
        raise ArgumentError(f"budget is {budget!r}. HINT: write bytes, such as '12GiB', or leave it out for all.")
    # A strategy prepares the devices, before they are asked for the first time.
    devices = jd.MirroredStrategy().extended.mesh.devices
    topology, amount = topology_of(devices), memory_of(devices, amount)
    return applied(_chosen(_script(), sys.argv[1:], topology, amount, seconds), layout)


def _check_devices(topology: str, devices: Sequence[Device], choice: Path) -> None:
    """Warns of a choice that was made for other devices."""
    try:
        here = topology_of(devices)
    except ArgumentError:  # such devices cannot be planned for by their name
        return
    if topology not in ("", here):
        Callers.warn(
            f"{choice} was chosen for {topology}, and this is {here}: another way may be faster, and what fitted there "
            f"may not fit here. HINT: jaxtribute plan --fit --topology {here} --save {choice} SCRIPT."
        )


def applied(chosen: Outcome, layout: Foreign = None) -> jd.Strategy:
    """Makes the strategy of a choice, and sets its budget.

    Args:
      chosen: the choice.
      layout: how variables lie on the devices of a replica; None for what was found.
    """
    one, arguments = chosen.candidate, dict[str, Any]()
    if one.per_replica > 1:
        found = jd.LayoutMap({key: tuple(axes) for key, axes in chosen.layout.items()}) if chosen.layout else "auto"
        arguments = {"devices_per_replica": one.per_replica, "layout": found if layout is None else layout}
    if one.memory is not None:
        jd.config.set_memory_budget(one.memory)
    for line in chosen.lines_besides(one.batch):
        _LOG.warning("the choice has a line that no strategy can be told, and the script has to say: %s", line)
    return getattr(jd, one.strategy)(**arguments)


def topology_of(devices: Sequence[Device]) -> str:
    """The name that `jaxtribute plan` has for these devices.

    Raises:
      ArgumentError: it has none.
    """
    first: Any = devices[0]
    if first.platform == "cpu":
        return f"cpu:{len(devices)}"
    name = known_as(first)
    if name is not None and first.platform == "tpu":
        chip = name.removeprefix("tpu-")
        # Chips may begin anywhere in a slice that is larger.
        axes = list(zip(*(getattr(device, "coords", ()) for device in devices), strict=True))
        lengths = [max(axis) - min(axis) + 1 for axis in axes]
        flat = lengths[:2] if chip in ("v5e", "v6e") else lengths
        if lengths:
            return f"{chip}:{'x'.join(map(str, flat))}"
        name = None  # its place in a slice is not known
    if name is None:
        raise ArgumentError(
            f"nothing is known of devices of the kind {first.device_kind!r}. HINT: Automatic('choice.json') with what "
            "jaxtribute plan --fit --save wrote for a topology that it knows."
        )
    hosts = len({getattr(device, "process_index", 0) for device in devices})
    return f"{name}:{hosts}x{len(devices) // hosts}"


def memory_of(devices: Sequence[Device], amount: int | None) -> int | None:
    """Bytes of each that a step may take: of one name there are several sizes, and JAX leaves others a part of GPUs.

    Args:
      devices: the devices.
      amount: what the user allows; None for all.
    """
    limits = [memory_stats(device).get("bytes_limit", 0) for device in devices]
    return min([each for each in (amount, *limits) if each], default=None)


def _script() -> Path:
    main: Any = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if getattr(main, "__spec__", None) is not None:
        raise ConfigError(
            f"Automatic searches by running the script anew, and python -m {main.__spec__.name} runs a module. "
            "HINT: run the file, or pass the file that jaxtribute plan --fit --save wrote."
        )
    if file is None:
        raise ConfigError(
            "Automatic searches by running the script anew, and there is none. HINT: put the training into a file, or "
            "pass the file that jaxtribute plan --fit --save wrote."
        )
    return Path(file)


def _chosen(script: Path, arguments: Sequence[str], topology: str, budget: int | None, seconds: float) -> Outcome:
    """The choice that is kept, or a new one.

    Raises:
      ArgumentError: nothing of what was tried fits.
    """
    kept = kept_at(script, arguments, topology, budget)
    with suppress(ArgumentError):  # what cannot be read is looked for again
        return Outcome.read(_read(kept))
    sys.stderr.write(
        f"jaxtribute: looking for a way to train {script.name} on {topology}; begins no program after {seconds:.0f} s\n"
    )
    found = fit(script, arguments, topology, budget=budget, seconds=seconds, optimizer=False)
    if not found.ranked:
        reasons = "; ".join(f"{one.candidate}: {one.refusal}" for one in found.found)
        raise ArgumentError(
            f"{script.name} does not fit {topology}: {reasons or 'nothing was compiled in time'}. "
            "HINT: use fewer examples, 16-bit numbers, or more devices."
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    # Another start may read it meanwhile, so it appears whole.
    part = kept.with_suffix(f".{os.getpid()}")
    found.save(part)
    part.replace(kept)
    best = found.ranked[0]
    sys.stderr.write(f"jaxtribute: chosen, and kept in {kept}: {best.candidate}\n")
    return best


def kept_at(script: Path, arguments: Sequence[str], topology: str, budget: int | None) -> Path:
    """The file of the choice for a script, beside the compiled programs."""
    config: Any = jax.config
    folder = str(config.jax_compilation_cache_dir or default_directory())
    folder = default_directory() if "://" in folder else Path(folder)  # JAX takes buckets, too
    asked = [str(script.resolve()), *arguments, topology, budget, *map(_version, _MATTER)]
    key = hashlib.sha256(json.dumps(asked).encode())
    # A short script may have its model in modules beside it.
    for file in (script, *sorted(set(modules_beside(script).values()))):
        key.update(hashlib.sha256(file.read_bytes()).digest())
    return folder / "choices" / f"{key.hexdigest()[:32]}.json"


def _version(name: str) -> str:
    """The version of an installed package; empty if there is none, such as of a compiler that may come later."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _read(path: Path) -> Mapping[str, Any]:
    """The fields of a choice.

    Raises:
      ArgumentError: the file cannot be read, or is no JSON.
    """
    try:
        return parse_json(read_regular(path).decode())
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"{path} holds no choice: {error}. HINT: write one with jaxtribute plan --fit --save."
        ) from error
