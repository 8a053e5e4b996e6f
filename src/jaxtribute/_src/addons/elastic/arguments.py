"""Arguments of `ElasticStrategy`, checked: its settings, and where the islands are."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import optax

from jaxtribute import MirroredStrategy, OneDeviceStrategy, Strategy
from jaxtribute._src.addons.elastic.membership import Island
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ClusterError
from jaxtribute.extending import default_devices, settings
from jaxtribute.typing import Device

if TYPE_CHECKING:
    from jaxtribute._src.addons.elastic.exchange import Islands
    from jaxtribute.cluster_resolver import ClusterResolver
    from jaxtribute.experimental import CommunicationOptions


_INCARNATION = "JAXTRIBUTE_INCARNATION"


class LocalSettings(NamedTuple):
    """The settings of islands that train alone, checked; `every` is from one meeting to the next."""

    every: int
    overlap: int
    fragments: int
    outer: optax.GradientTransformation
    wire: str | None
    feedback: bool

    @classmethod
    def checked(
        cls,
        every: int | None,
        overlap: int,
        fragments: int,
        outer: optax.GradientTransformation | None,
        options: CommunicationOptions | None,
    ) -> LocalSettings | None:
        """The settings; None for islands that take each step together.

        Raises:
          ArgumentError: settings that need `sync_every`, or a number of steps below 1; an overlap that is as long as
            from one meeting to the next; fragments that do not divide the steps.
          ArgumentTypeError: an outer optimizer that is no Optax transformation.
        """
        if every is None:
            given = {"outer_optimizer": outer, "communication_options": options, "overlap_steps": overlap or None}
            given["fragments"] = None if fragments == 1 else fragments
            for name, value in given.items():
                if value is not None:
                    raise ArgumentError(
                        f"{name} is {value!r}, and sync_every is None. HINT: it is for islands that train alone: "
                        "pass sync_every= as well."
                    )
            return None
        outer = optax.sgd(0.7, momentum=0.9, nesterov=True) if outer is None else outer
        if not all(callable(getattr(outer, name, None)) for name in ("init", "update")):
            raise ArgumentTypeError(
                f"outer_optimizer is {outer!r} of type {type(outer).__name__}. HINT: pass an Optax transformation, "
                "such as optax.sgd(0.7, momentum=0.9, nesterov=True)."
            )
        every, fragments = settings.whole("sync_every", every, 1), settings.whole("fragments", fragments, 1)
        if every % fragments:
            raise ArgumentError(
                f"fragments is {fragments}, and sync_every {every}: each has its turn after as many steps. HINT: pass "
                "a number that divides sync_every."
            )
        every //= fragments
        if settings.whole("overlap_steps", overlap, 0) >= every:
            raise ArgumentError(
                f"overlap_steps is {overlap}, and islands meet after {every}: changes must be there before the next "
                f"ones are sent. HINT: pass {every - 1} or fewer."
            )
        wire, feedback = (None, False) if options is None else (options.wire, options.error_feedback)
        return cls(every, overlap, fragments, outer, wire, feedback)


def checked_virtual(count: int | None, islands: int, sync_every: int | None) -> int | None:
    """The number of virtual replicas, checked.

    Raises:
      ArgumentError: there are more islands, or these train alone.
    """
    if count is None:
        return None
    if sync_every is not None:
        raise ArgumentError(
            f"virtual_replicas is {count!r}, and sync_every {sync_every!r}: islands that train alone come to what "
            "depends on their number. HINT: leave one of them out."
        )
    if settings.whole("virtual_replicas", count, 1) < islands:
        raise ArgumentError(
            f"virtual_replicas is {count}, and there are {islands} islands, each of which has at least one. HINT: pass "
            f"{islands} or more."
        )
    return count


def incarnation_told() -> int:
    """Number of this process's earlier starts, as its launcher says.

    Raises:
      ArgumentError: it says something else.
    """
    text = os.environ.get(_INCARNATION, "") or "0"
    if not text.isdecimal():
        raise ArgumentError(f"{_INCARNATION} is {text!r}. HINT: leave it to jaxtribute launch --elastic.")
    return int(text)


settings.reader(_INCARNATION, incarnation_told)


def places(resolver: ClusterResolver) -> tuple[list[str], int]:
    """The addresses of the islands, and this one's rank."""
    spec: dict[str, Any] = dict(resolver.cluster_spec().as_dict())
    if not spec:
        return ["127.0.0.1:0"], 0
    others = spec.keys() - {"worker"}
    if others:
        raise ArgumentError(
            f"the cluster has tasks {sorted(others)} besides workers. HINT: islands are workers: "
            "jaxtribute launch --workers N."
        )
    _, rank = resolver.own_task()
    return list(spec["worker"]), rank


_islands: weakref.WeakKeyDictionary[Islands, tuple[str, ...]] = weakref.WeakKeyDictionary()
"""The islands that this process is, with the addresses of all."""


def check_first(addresses: Sequence[str], me: Island) -> None:
    """Checks that this process is not that island already: the others would wait for both.

    Raises:
      ClusterError: it is.
    """
    known = [(there, islands.me) for islands, there in list(_islands.items()) if not islands.closed]
    if len(addresses) > 1 and (tuple(addresses), me) in known:
        raise ClusterError(
            f"this process is island {me.rank} of {list(addresses)} already, by an ElasticStrategy that it made "
            "before. HINT: use one strategy for the whole program."
        )


def note_island(islands: Islands, addresses: Sequence[str]) -> None:
    """Takes note of an island that this process is."""
    _islands[islands] = tuple(addresses)


def devices_of(inner: Strategy | None) -> list[Device]:
    """The devices of an island.

    Raises:
      ArgumentTypeError: the inner strategy is of another kind, or spans several processes.
    """
    if inner is None:
        return list(default_devices()[:1])
    if type(inner) not in (OneDeviceStrategy, MirroredStrategy) or inner.extended.mesh.group:
        raise ArgumentTypeError(
            f"inner is {inner!r}, which is not for an island. HINT: pass jd.OneDeviceStrategy('CPU:0') or "
            "jd.MirroredStrategy(...) with a device for each replica, or nothing."
        )
    return list(inner.extended.mesh.devices)
