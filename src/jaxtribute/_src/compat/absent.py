"""The error for a name of TensorFlow that does not exist here: it says why, and what to write instead."""

from __future__ import annotations

from jaxtribute._src.compat.catalog.lookup import why_absent


def explain_absent(module: str, prefix: str, name: str) -> AttributeError:
    """Returns the error for `name` of the module that stands for TensorFlow's `prefix`."""
    reason = "" if name.startswith("__") else why_absent(f"{prefix}.{name}")
    told = f"module {module!r} has no {name!r}"
    if not reason:
        return AttributeError(f"{told}. HINT: docs/migration.md lists what exists of {prefix}.", name=name)
    return AttributeError(f"{told}. HINT: {reason}.", name=name)
