"""The nest of parameters that an Optax transformation is handed, and the parameters that its state belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxtribute._src.core.types import Leaf, Nest
from jaxtribute.errors import ShapeError

Path = tuple[Any, ...]


@dataclass(frozen=True)
class Belonging:
    """The owner of one leaf of a state.

    Attributes:
      path: its path in the state; in a nest like that of the parameters, the path of that nest.
      owner: the number of the parameter that it belongs to and is shaped as, or None.
    """

    path: Path
    owner: int | None


@dataclass(frozen=True)
class Parameters:
    """The structure that the user gave parameters in.

    Attributes:
      tree: the structure, each parameter a leaf.
      shapes: shape and dtype of each parameter.
    """

    tree: jax.tree_util.PyTreeDef
    shapes: tuple[jax.ShapeDtypeStruct, ...]

    @classmethod
    def of(cls, leaves: Sequence[Any], tree: Any) -> Parameters:
        """The structure of parameters that have a shape and a dtype."""
        return cls(tree, tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves))

    @property
    def abstract(self) -> Any:
        """The nest of shapes, for tracing."""
        return self.nest(self.shapes)

    def nest(self, leaves: Sequence[Any]) -> Any:
        """The nest of what is given for each parameter, in their order."""
        return self.tree.unflatten(leaves)

    @cached_property
    def paths(self) -> list[Path]:
        """Each parameter's path."""
        return [path for path, _ in jax.tree_util.tree_leaves_with_path(self.abstract)]

    def belongings(self, state: Nest, init: Callable[[Any], Any]) -> list[Belonging]:
        """Finds the parameter that each leaf of a state belongs to.

        Optax keeps what belongs to parameters in nests like theirs, in which `optax.MaskedNode` or None may stand for a
        parameter or for many.

        Args:
          state: the shapes of what `init` makes of the parameters.
          init: that of the transformation.
        """
        if () in self._places:
            return self._alone(state, init)
        belongings: list[Belonging] = []
        for path, node in jax.tree_util.tree_leaves_with_path(state, is_leaf=self._is_alike):
            for rest, leaf in jax.tree_util.tree_leaves_with_path(node):
                belongings.append(self._belonging((*path, *rest), rest, leaf))
        return belongings

    def _alone(self, state: Nest, init: Callable[[Any], Any]) -> list[Belonging]:
        """The same for a parameter in no nest, of which a state does not show what is like it: in a list it would."""
        listed = Parameters(jax.tree.structure([0]), self.shapes)
        leaves = jax.tree_util.tree_leaves_with_path(state)
        try:
            in_list = listed.belongings(jax.eval_shape(init, list(self.shapes)), init)
            return [Belonging(path, belonging.owner) for (path, _), belonging in zip(leaves, in_list, strict=True)]
        except Exception:  # noqa: BLE001  # of the transformation, which may know no lists
            return [Belonging(path, 0 if self._fits(leaf, 0) else None) for path, leaf in leaves]

    def check_shapes(self, leaves: Sequence[Any], before: Sequence[Any]) -> None:
        """Checks that an update has left the shapes as they are that the parameters, or rows of them, had `before`.

        Raises:
          ShapeError: it has not; as one by gradients for each example, which the transformation does not expect.
        """
        for path, old, leaf in zip(self.paths, before, leaves, strict=True):
            if jnp.shape(leaf) != jnp.shape(old):
                raise ShapeError(
                    f"the update makes of the parameter {jax.tree_util.keystr(path)} of shape {jnp.shape(old)} one of "
                    f"shape {jnp.shape(leaf)}. HINT: pass gradients of the parameters' shapes; gradients for each "
                    "example are for transformations that expect them, such as optax.contrib.dpsgd."
                )

    @cached_property
    def _places(self) -> dict[Path, int]:
        return {path: place for place, path in enumerate(self.paths)}

    def _is_alike(self, node: Leaf) -> bool:
        """True for a nest that has a leaf or a gap for each parameter, and nothing else."""
        met: set[Path] = set()
        gaps: list[Path] = []
        for path, leaf in jax.tree_util.tree_leaves_with_path(node, is_leaf=_is_gap):
            if _is_gap(leaf):
                gaps.append(path)
            elif path in self._places:
                met.add(path)
            else:
                return False
        missing = [path for path in self.paths if path not in met]
        return bool(met) and all(any(path[: len(gap)] == gap for gap in gaps) for path in missing)

    def _belonging(self, path: Path, rest: Path, leaf: Any) -> Belonging:
        """Whom the leaf at `path` belongs to; `rest` is its path in a nest like that of the parameters, or empty."""
        if rest:
            place = self._places[rest]
            return Belonging(_without(path, rest), place if leaf.shape == self.shapes[place].shape else None)
        # A nest that has only some of the parameters: the longest end of the path that is one's own. What has not even
        # its shape, or counts, only happens to lie at such a path.
        ends = [end for end in self.paths if path[len(path) - len(end) :] == end]
        for end in sorted(ends, key=len, reverse=True):
            if self._fits(leaf, self._places[end]):
                return Belonging(_without(path, end), self._places[end])
        return Belonging(path, None)

    def _fits(self, leaf: Any, place: int) -> bool:
        return leaf.shape == self.shapes[place].shape and jnp.issubdtype(leaf.dtype, jnp.inexact)


def _without(path: Path, end: Path) -> Path:
    return path[: len(path) - len(end)]


def _is_gap(value: Leaf) -> bool:
    return value is None or isinstance(value, optax.MaskedNode)
