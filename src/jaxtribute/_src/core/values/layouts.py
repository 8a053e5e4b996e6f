"""Layouts: the axes within a replica that the axes of an array are split over, by hand or by patterns of names."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.callers import warn
from jaxtribute._src.core.types import Foreign, Numeric
from jaxtribute._src.core.values.mesh import Layout, ReplicaMesh
from jaxtribute._src.json_reading import read_json
from jaxtribute._src.regular_files import with_hint
from jaxtribute.errors import ArgumentError, ArgumentTypeError, ShapeError


def parse_layout(layout: Foreign) -> Layout:
    """Reads a layout as users write it.

    Args:
      layout: for each axis of an array a name, a tuple of names, or None: a tuple, list, `jax.sharding.PartitionSpec`,
        or an object that has them as `axes`, such as Keras's `TensorLayout`.

    Returns:
      A tuple, without the Nones at its end.

    Raises:
      ArgumentTypeError: anything else.
      ArgumentError: a name that stands twice.
    """
    axes = getattr(layout, "axes", layout)
    if not isinstance(axes, (tuple, list, PartitionSpec)):
        raise ArgumentTypeError(
            f"a layout is {layout!r} of type {type(layout).__name__}. "
            'HINT: name an axis or None for each axis of the array, e.g. (None, "model").'
        )
    parsed = [tuple(axis) if isinstance(axis, list) else axis for axis in cast("list[Any]", axes)]
    names = list(chain.from_iterable(map(names_of, parsed)))
    if not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError(
            f'a layout is {layout!r}. HINT: each axis is a name, a tuple of names, or None: (None, "model").'
        )
    if len(set(names)) < len(names):
        raise ArgumentError(f"the layout {layout!r} names an axis twice. HINT: split one axis of the array over it.")
    # In one form: layouts are compared with each other.
    while parsed and parsed[-1] is None:
        parsed.pop()
    return tuple(parsed)


def names_of(axis: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The names of axes that one axis of an array is split over."""
    if axis is None:
        return ()
    return axis if isinstance(axis, tuple) else (axis,)


def parts_along(names: Iterable[str], group: Mapping[str, int]) -> int:
    """Number of parts into which axes within a replica split what lies over all of them."""
    return math.prod(map(group.__getitem__, names))


def check_layout(layout: Layout, shape: tuple[int, ...], mesh: ReplicaMesh, name: str) -> Layout:
    """Checks that an array of this shape can be laid out so on the devices of a replica.

    Args:
      layout: what `parse_layout` gave.
      shape: the array's shape.
      mesh: the replicas' devices.
      name: names the array in messages.

    Returns:
      The layout; where each replica has one device, the empty one: a program runs unchanged on any number of them.

    Raises:
      ShapeError: more axes than the array has, or an axis that cannot be divided equally.
      ArgumentError: an axis that the replicas do not have.
    """
    if len(layout) > len(shape):
        raise ShapeError(
            f"the layout {layout} of {name} has {len(layout)} axes, its shape {shape} {len(shape)}. "
            "HINT: name an axis or None for each axis of the array."
        )
    if not mesh.group:
        return ()
    check_names(layout, mesh.group, name)
    # A layout may be shorter than the shape: the axes behind it are whole.
    for size, axis in zip(shape, layout, strict=False):
        parts = parts_along(names_of(axis), mesh.group)
        if size % parts:
            raise ShapeError(
                f"the layout {layout} of {name} splits an axis of {size} elements into {parts} parts; its shape is "
                f"{shape}. HINT: leave that axis whole (None), or choose a size that {parts} divides."
            )
    return layout


def check_names(layout: Layout, group: Mapping[str, int], name: str) -> None:
    """Checks that a layout names axes that the replicas have.

    Raises:
      ArgumentError: another axis.
    """
    for axis in layout:
        for one in names_of(axis):
            if one not in group:
                raise ArgumentError(
                    f"the layout {layout} of {name} names the axis {one!r}; the replicas' devices have {dict(group)}. "
                    f'HINT: name one of these, or give the strategy replica_shape={{"{one}": ...}}.'
                )


def with_layout(value: Numeric, layout: Foreign) -> Any:
    """Lets the devices of a replica hold an array in parts, from here on; to be called in a replica function.

    It changes where the array lies and never what it is: the compiler divides the work of what follows among the
    devices, and brings parts together where they are needed. Gradients are laid out likewise. Where a replica has one
    device, nothing is done.

    Args:
      value: an array, such as the activations of a layer.
      layout: for each of its axes the axis of `replica_shape` that splits it, a tuple of them, or None: for instance
        `(None, None, "model")`.

    Returns:
      The array.

    Raises:
      ArgumentError: an axis that the replicas do not have.
      ShapeError: more axes than the array has, or one that cannot be divided equally.

    Examples:
      >>> strategy = jd.MirroredStrategy(4, devices_per_replica=2)
      >>> @jd.function
      ... def step():
      ...     return strategy.run(lambda: jd.with_layout(jnp.ones((2, 4)), (None, "model")).sum())
      >>> strategy.reduce("SUM", step(), axis=None)
      Array(16., dtype=float32)

    Source: `jax.lax.with_sharding_constraint`; `keras.distribution.distribute_tensor`.
    """
    context = contexts.current()
    mesh = context.strategy.extended.mesh
    array = jnp.asarray(value)
    checked = check_layout(parse_layout(layout), array.shape, mesh, "the array")
    return context.executor.constrain(array, checked, mesh) if mesh.group else value


class LayoutNote(NamedTuple):
    """A word about an entry of a `LayoutMap`.

    Attributes:
      shape: the variable's shape.
      reason: a sentence that says why the variable lies so.
    """

    shape: tuple[int, ...]
    reason: str


class LayoutMap(MutableMapping[str, Any]):
    """Layouts of variables by patterns of their names.

    A key is a regular expression, which is searched for in the variable's name (`"decoder/.*/kernel"`); the name itself
    takes precedence. A name that no key fits has no layout: such a variable is whole on each device of a replica.

    Args:
      layouts: the first entries: for each key a layout, see `jd.Variable`.

    Attributes:
      notes: for some keys the variable's shape and the reason of its layout; `print` shows them.

    Raises:
      ArgumentError: a key that is no regular expression; (on a look-up) a name that several keys fit.
      ArgumentTypeError: keys or layouts of another type.

    Examples:
      >>> layouts = jd.LayoutMap({r"kernel": (None, "model"), r"bias": ("model",)})
      >>> layouts.find("dense_1/kernel")
      (None, 'model')

    Source: `keras.distribution.LayoutMap`, which strategies take as well.
    """

    Note = LayoutNote

    def __init__(self, layouts: Mapping[str, Foreign] | None = None) -> None:
        self._layouts: dict[str, Layout] = {}
        self._fitted: set[str] = set()
        self.notes: dict[str, LayoutNote] = {}
        if layouts is not None and not isinstance(cast("Any", layouts), Mapping):
            raise ArgumentTypeError(
                f"layouts is {layouts!r} of type {type(layouts).__name__}. "
                'HINT: pass a dictionary, e.g. {"dense/kernel": (None, "model")}.'
            )
        for key, layout in (layouts or {}).items():
            self[key] = layout

    def __getitem__(self, key: str) -> Layout:
        return self._layouts[key]

    def __setitem__(self, key: str, layout: Foreign) -> None:
        if not isinstance(cast("Any", key), str):
            raise ArgumentTypeError(
                f"a key of a LayoutMap is {key!r}. HINT: a pattern of names, such as 'dense/kernel'."
            )
        try:
            # A wrong pattern is told where it is written, and not when the first variable is made.
            re.compile(key)
        except re.error as error:
            raise ArgumentError(
                f"a key of a LayoutMap is {key!r}, which is no regular expression: {error}. HINT: use re.escape."
            ) from error
        self._layouts[key] = parse_layout(layout)

    def __delitem__(self, key: str) -> None:
        del self._layouts[key]
        self.notes.pop(key, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._layouts)

    def __len__(self) -> int:
        return len(self._layouts)

    def __repr__(self) -> str:
        return f"jd.{type(self).__name__}({self._layouts})"

    def __str__(self) -> str:
        """A table of the entries: variable, shape, layout, reason."""
        if not self.notes:
            return repr(self)
        rows = [("variable", "shape", "layout", "reason")]
        for key, layout in self.items():
            note = self.notes.get(key, LayoutNote((), ""))
            name = re.sub(r"\\(.)", r"\1", key.removeprefix("^").removesuffix("$"))
            rows.append((name, " x ".join(map(str, note.shape)), str(layout or "whole"), note.reason))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines: list[str] = []
        for *cells, reason in rows:
            padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
            lines.append("  ".join([*padded, reason]).rstrip())
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the entries to a file of JSON, to be read, edited and loaded again.

        Args:
          path: the file, which is replaced if it exists.
        """
        entries: dict[str, Any] = {}
        for key, layout in self.items():
            note = self.notes.get(key)
            said = {} if note is None else {"shape": list(note.shape), "reason": note.reason}
            entries[key] = {"layout": list(layout), **said}
        # A line for each entry, so that a file kept beside the program shows in its history which layout has changed.
        lines = [f"  {json.dumps(key)}: {json.dumps(entry)}" for key, entry in entries.items()]
        Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads what `save` wrote; an entry may also be a layout alone: `"dense/kernel": [null, "model"]`.

        Raises:
          ArgumentError: the file is no JSON object of layouts, a key is no regular expression, or stands there twice.
          ArgumentTypeError: an entry is no layout.
          OSError: there is no such file (FileNotFoundError), it cannot be read, or is no regular one.
        """
        try:
            read: Any = read_json(path)
        except OSError as error:
            raise with_hint(error, "give a file that LayoutMap.save wrote.") from error
        except ValueError as error:
            raise ArgumentError(f"{error}. HINT: correct it, or save it anew.") from error
        if not isinstance(read, dict):
            raise ArgumentError(
                f"{os.fspath(path)} holds a {type(read).__name__}. "
                'HINT: an object of names and layouts, such as {"dense/kernel": [null, "model"]}.'
            )
        made = cls()
        for key, entry in cast("dict[str, Any]", read).items():
            # An entry written by hand may be the layout alone.
            fields: dict[str, Any] = entry if isinstance(entry, dict) else {"layout": entry}
            try:
                made[key] = fields.get("layout")
            except (ArgumentError, ArgumentTypeError) as error:
                raise type(error)(f"{os.fspath(path)}: {key!r}: {error}") from error
            if "reason" in fields:
                shape: Any = fields.get("shape")
                made.notes[key] = LayoutNote(tuple(shape) if isinstance(shape, list) else (), str(fields["reason"]))
        return made

    def find(self, name: str) -> Layout:
        """Finds the layout of the variable `name`; the empty one if no key fits.

        Raises:
          ArgumentError: several keys fit.
        """
        # The name itself goes first: read as a pattern it may fit other variables too.
        fitting = [name] if name in self._layouts else [key for key in self._layouts if re.search(key, name)]
        if len(fitting) > 1:
            raise ArgumentError(
                f"the variable {name!r} fits several keys of a LayoutMap: {fitting}. HINT: make them tell the "
                "variables apart, or add the name itself as a key."
            )
        self._fitted.update(fitting)
        return self._layouts[fitting[0]] if fitting else ()

    def warn_of_unused(self, names: Iterable[str]) -> None:
        """Warns, once, of keys that no variable has fitted yet: what they were to split lies whole on each device."""
        unused = self._layouts.keys() - self._fitted
        self._fitted |= unused
        if unused:
            warn(
                f"no variable fits {sorted(unused)} of a LayoutMap; the step trains {sorted(names)[:8]}. HINT: correct "
                "the patterns: what no key fits is whole on each device."
            )
