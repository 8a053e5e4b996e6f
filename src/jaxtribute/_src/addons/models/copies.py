"""Warns of what a step changes in `model.value`, which is a copy: batch statistics and counts would be lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtribute.errors import VariableError
from jaxtribute.extending import Callers
from jaxtribute.typing import Nest

_HINT = (
    "HINT: call the jd.Model itself, model(x), in a loss given to model.minimize or jd.value_and_grad(loss, model): it "
    "keeps what a call changes."
)
Copy = tuple[Any, list[Any]]
"""A copy, and the values that it was made of."""


def lost_in(copies: Sequence[Copy], outline: Any, moving: Sequence[str | None]) -> list[str]:
    """The names of arrays that code has changed in copies.

    Args:
      copies: the copies.
      outline: that of the model.
      moving: the names of the arrays that steps change, None for all others.
    """
    lost: dict[str, None] = {}
    for copy, before in copies:
        try:
            after = outline.values(copy)
        except VariableError:  # it has other variables now
            continue
        for name, old, new in zip(moving, before, after, strict=True):
            if name is not None and new is not old:
                lost[name] = None
    return list(lost)


def warn_of_lost(kind: str, lost: Sequence[str]) -> None:
    """Warns that what a step has changed is in a copy.

    Args:
      kind: the model's class.
      lost: the names of the arrays.
    """
    if lost:
        Callers.warn(
            f"a step has changed {', '.join(lost[:3])}{', ...' if len(lost) > 3 else ''} in model.value, which is a "
            f"copy of the {kind}: the jd.Model keeps what it had. {_HINT}"
        )


def warn_of_state(kind: str, gradients: Nest, moving: Sequence[str | None]) -> None:
    """Warns of gradients that Flax has taken of a copy, if there is anything in it that its call may change.

    Args:
      kind: the model's class.
      gradients: the gradients.
      moving: the names of the arrays that steps change, None for all others.
    """
    if not type(gradients).__module__.startswith("flax.nnx"):
        return
    names = [name for name in moving if name is not None]
    if names:
        Callers.warn(
            f"gradients by a module of Flax, which was a copy of the {kind}: what the loss changed in it, such as "
            f"{names[0]}, is not kept. {_HINT}"
        )
