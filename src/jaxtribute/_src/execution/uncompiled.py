"""Running a `jd.function` as Python, where its replicas cannot be one compiled program."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from jaxtribute._src import context as contexts
from jaxtribute._src.execution.eager import EagerStep

_LOG = logging.getLogger(__name__)


class NotSplittable(Exception):  # noqa: N818
    """Programs of replicas that differ in shape cannot be brought together; the step must run in lockstep."""


class InnerCollective(NotSplittable):
    """A collective is inside a loop or a condition, which then must run as Python."""


def uncompiled(call: Callable[[Sequence[Any]], Any], reason: NotSplittable, name: str) -> Callable[..., Any]:
    """Settles for lockstep, which is exact but slow; says so once, when it is made.

    Args:
      call: the Python function of its array arguments.
      reason: why it cannot be compiled.
      name: its name.
    """
    _LOG.warning(
        "%s runs uncompiled for this batch, whose replicas differ in shape: %s. HINT: drop the remainder, or keep "
        "collectives out of loops and conditions.",
        name,
        reason,
    )
    op_by_op = isinstance(reason, InnerCollective)

    def run(dynamic: Sequence[Any], _: EagerStep | None = None) -> Any:
        context = contexts.current()
        step = EagerStep(uncompiled=True, op_by_op=op_by_op)
        with contexts.entered(contexts.Context(context.strategy, context.replica, step)):
            result = call(dynamic)
        step.commit()
        return result

    return run
