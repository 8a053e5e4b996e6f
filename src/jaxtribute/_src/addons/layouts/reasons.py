"""The reason for a variable's layout, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtribute._src.addons.layouts.axes import AxisClasses
from jaxtribute._src.addons.layouts.clusters import Cluster, Plan

_OF_KINDS = {
    "columns": "split by columns",
    "rows": "split by rows",
    "outputs": "split by output channels",
    "inputs": "split by input channels",
    "lookup": "split by vocabulary",
    "batch": "split by its batches",
}

IN_PIECES = "a piece on each device: none of its axes can be cut among the replicas and split within them"
AS_MADE = "as it was made: the program does not use the axes of its value"


def reason(clusters: Sequence[Cluster], plan: Plan, place: int, parts: int, classes: AxisClasses) -> str:
    """The reason for the layout of a cluster.

    Args:
      clusters: all clusters.
      plan: how they are laid out.
      place: the one that is asked about.
      parts: the number of parts into which an axis is split.
      classes: the classes of the program's axes.
    """
    cluster, axis = clusters[place], plan[place]
    if not cluster.splits:
        return f"whole: no axis of its shape is divided by {parts}"
    partners = _partners(clusters, plan, place)
    if axis is None:
        return "whole: splitting it would move more bytes or save too little"
    # The first kind is that of the forward pass, in which a reader thinks of the model.
    kinds = cluster.kinds(cluster.axes[axis])
    if not kinds:
        return f"lies as {_names(partners)}, with which it goes" if partners else "split to save memory"
    text = _OF_KINDS[kinds[0]]
    if cluster.axes[axis] in classes.batches() and kinds[0] in ("columns", "rows"):
        text = f"split by heads ({text.removeprefix('split ')})"
    elif kinds[0] == "lookup" and {"rows", "columns"} & set(kinds):
        text += ", as a product uses it as well (tied)"
    # Vectors, such as a bias, only go along.
    products = [one for one in partners if len(one.shape) > 1]
    if not products:
        return f"{text}: to save memory" if kinds[0] != "lookup" else text
    if kinds[0] in ("columns", "outputs", "lookup"):
        return f"{text}, in which {_names(products)} takes its parts"
    return f"{text}, as {_names(products)} gives them in parts"


def _partners(clusters: Sequence[Cluster], plan: Plan, place: int) -> list[Cluster]:
    """The other clusters that are split along the same class, those that products use first."""
    axis = plan[place]
    if axis is None:
        return []
    mine = clusters[place].axes[axis]
    found: list[Cluster] = []
    for other, (one, its) in enumerate(zip(clusters, plan, strict=True)):
        if other != place and its is not None and one.axes[its] == mine:
            found.append(one)
    return sorted(found, key=lambda one: not one.uses)


def _names(clusters: Sequence[Cluster]) -> str:
    first = clusters[0].variables[0].name.removesuffix(":0")
    return first if len(clusters) == 1 else f"{first} and {len(clusters) - 1} more"
