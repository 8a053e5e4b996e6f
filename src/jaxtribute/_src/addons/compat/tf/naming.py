"""Scopes around the making of variables: `tf.name_scope` and `tf.variable_creator_scope`; none of version 1."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import jax

from jaxtribute.extending import Context

Creator: TypeAlias = "Callable[..., Any]"

_scopes: ContextVar[tuple[tuple[str, object], ...]] = ContextVar("scopes", default=())
"""The names in force, each with the replica whose function entered it."""
_creators: ContextVar[tuple[Creator, ...]] = ContextVar("creators", default=())


class name_scope(AbstractContextManager[str]):  # noqa: N801
    """Puts a name before those of variables that are made in a block, and names its operations in profiles.

    A replica's function begins without the names around `strategy.run`: it is the same on all of them. The block gets
    the whole name, with a `/` at its end.

    Args:
      name: the name; one that ends in `/` is used as it is, an empty one leaves all names.

    Source: `tf.name_scope`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        """The name, as it was given."""
        self._entered: list[AbstractContextManager[str]] = []

    def __enter__(self) -> str:
        self._entered.append(_named(self.name))
        return self._entered[-1].__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._entered.pop().__exit__(*error)


@contextmanager
def _named(name: str) -> Generator[str]:
    whole = name if name.endswith("/") or not name else f"{_prefix()}{name}/"
    token = _scopes.set((*_scopes.get(), (whole, _replica())))
    try:
        with jax.named_scope(name.strip("/") or "root"):
            yield whole
    finally:
        _scopes.reset(token)


@contextmanager
def variable_creator_scope(variable_creator: Creator) -> Generator[None]:
    """Lets a function make the variables of a block, or change what they are made of.

    Args:
      variable_creator: takes the next creator and the arguments of `tf.Variable` by keyword, and returns the variable,
        usually what the next creator gives. The innermost scope's is asked first, once for each variable.

    Source: `tf.variable_creator_scope`.
    """
    token = _creators.set((*_creators.get(), variable_creator))
    try:
        yield
    finally:
        _creators.reset(token)


def created(make: Creator, arguments: dict[str, Any]) -> Any:
    """The variable that the creators in force make of the arguments of `tf.Variable`; `make` is the last of them."""
    creator = make
    for outer in _creators.get():
        creator = _behind(outer, creator)
    return creator(**arguments)


def _behind(creator: Creator, following: Creator) -> Creator:
    return lambda **arguments: creator(following, **arguments)


def scoped(name: str | None) -> str:
    """A variable's name with those of the scopes that it is made in."""
    return f"{_prefix()}{name or 'Variable'}"


def _prefix() -> str:
    entered = _scopes.get()
    if not entered:
        return ""
    whole, replica = entered[-1]
    now = _replica()
    return whole if now is None or now is replica else ""


def _replica() -> object:
    """The replica whose function runs; None outside of `strategy.run`."""
    replica = Context.current().replica
    return None if replica is Context.outside().replica else replica
