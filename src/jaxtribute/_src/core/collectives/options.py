"""Hints for collectives: `CommunicationOptions`."""

from __future__ import annotations

import copy
from enum import Enum

from jaxtribute._src.core import settings
from jaxtribute.errors import ArgumentError, ArgumentTypeError

WIRES = ("float32", "bfloat16", "float16", "int8", "int4")
"""The types in which large float32 arrays may travel when they are summed."""


class CommunicationImplementation(Enum):
    """Library that carries collectives between machines.

    XLA chooses by the devices: NCCL between GPUs, Gloo (over TCP) between CPUs, the interconnect between TPUs. Between
    CPUs `RING` asks for Gloo's ring instead of what is faster, exchanges in pairs and factors of products; otherwise
    the members choose nothing.

    Source: `tf.distribute.experimental.CommunicationImplementation`.
    """

    AUTO = "AUTO"
    RING = "RING"
    NCCL = "NCCL"


class CommunicationOptions:
    """Hints for `ReplicaContext.all_reduce` and `StrategyExtended.batch_reduce_to`.

    Args:
      bytes_per_pack: how many bytes of small arrays may travel in one collective. 0 leaves it to the library.
      timeout_seconds: how long a collective between machines may take before it fails; None for no limit. Within
        one machine nothing is waited for and it has no effect.
      implementation: see `CommunicationImplementation`.
      wire: the type in which float32 arrays of 4,096 elements or more travel between replicas where they are summed:
        "bfloat16", "float16", "int8" or "int4". What travels is rounded, what is added is float32, and every replica
        gets the same bits. "float32" sums exactly whatever the strategy's hints say. None leaves it to the strategy,
        whose own None sums exactly.
      error_feedback: True adds what rounding has lost to what is sent next; for islands that train alone.

    Raises:
      ArgumentError: a negative size or time, an unknown implementation or type, or feedback of what is not rounded.

    Source: `tf.distribute.experimental.CommunicationOptions`.
    """

    def __init__(
        self,
        bytes_per_pack: int = 0,
        timeout_seconds: float | None = None,
        implementation: CommunicationImplementation | str = CommunicationImplementation.AUTO,
        *,
        wire: str | None = None,
        error_feedback: bool = False,
    ) -> None:
        self.bytes_per_pack: int = settings.whole("bytes_per_pack", bytes_per_pack)
        self.timeout_seconds: float | None = settings.amount("timeout_seconds", timeout_seconds, optional=True)
        self.implementation: CommunicationImplementation = settings.member(
            "implementation", implementation, CommunicationImplementation
        )
        self.wire: str | None = settings.text("wire", wire, optional=True)
        self.error_feedback: bool = settings.flag("error_feedback", error_feedback)
        if wire is not None and wire not in WIRES:
            raise ArgumentError(f"wire is {wire!r}. HINT: pass None or one of {', '.join(map(repr, WIRES))}.")
        if error_feedback and wire in (None, "float32"):
            raise ArgumentError(f"error_feedback is True, and wire {wire!r} rounds nothing. HINT: pass wire='int4'.")

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(bytes_per_pack={self.bytes_per_pack}, timeout_seconds={self.timeout_seconds}, "
            f"implementation={self.implementation}, wire={self.wire!r}, "
            f"error_feedback={self.error_feedback})"
        )

    def within(self, outer: CommunicationOptions | None) -> CommunicationOptions:
        """These hints of a call, with the type that `outer`, those of its strategy, names if they name none."""
        if outer is None or outer.wire is None or self.wire is not None:
            return self
        hints = copy.copy(self)
        hints.wire, hints.error_feedback = outer.wire, outer.error_feedback
        return hints


def checked_hints(options: CommunicationOptions | None) -> CommunicationOptions | None:
    """A strategy's `communication_options`, if they are some.

    Raises:
      ArgumentTypeError: they are something else.
    """
    if options is not None and not isinstance(options, CommunicationOptions):
        raise ArgumentTypeError(
            f"communication_options is {options!r}, a {type(options).__name__}. "
            "HINT: pass a jd.experimental.CommunicationOptions."
        )
    return options


EXACT = CommunicationOptions(wire="float32")
"""The hints of sums that are no gradients: what variables are assigned, statistics and counts."""
