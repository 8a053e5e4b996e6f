"""Asks the questions of `cases`, of whichever library has the names."""

import os
from typing import Any

_BUILTIN = (TypeError, KeyError, AttributeError, ValueError, RuntimeError)


def answer(code: str, names: dict[str, Any]) -> Any:
    """What an expression gives, as JSON holds it; the name of a builtin exception, as `{"raises": name}`."""
    helpers = {"after": _after, "visible": _visible}
    try:
        return plain(eval(code, names | helpers))
    except _BUILTIN as error:
        return {"raises": next(kind.__name__ for kind in _BUILTIN if isinstance(error, kind))}


def plain(value: Any) -> Any:
    if hasattr(value, "as_dict"):
        return plain(value.as_dict())
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, (str, int, bool, type(None))) else type(value).__name__


def _after(resolver: Any) -> Any:
    resolver.cluster_spec()
    return resolver


def _visible(resolver: Any) -> str:
    resolver.cluster_spec()
    return os.environ["CUDA_VISIBLE_DEVICES"]
