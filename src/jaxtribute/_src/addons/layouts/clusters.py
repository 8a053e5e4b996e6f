"""Variables that lie alike, as all their axes go together, and first guesses at a layout of them all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from jaxtribute import REPLICA_AXIS, Variable
from jaxtribute._src.addons.layouts.automatic import Layout
from jaxtribute._src.addons.layouts.axes import AxisClasses, Use

Plan = tuple[int | None, ...]
"""For each cluster the axis that is split; None if it is whole."""


@dataclass(frozen=True)
class Cluster:
    """Variables that lie alike: a kernel, its gradient's sum, its optimizer's slots.

    Attributes:
      variables: the variables, the model's own before those that the library made beside them.
      shape: the shape of each.
      axes: the classes of its axes.
      splits: the axes that can be split.
      even: those of them whose whole class can be.
      uses: how the first of the variables that a product uses is used there.
      nbytes: bytes of all of them.
    """

    variables: tuple[Variable, ...]
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    splits: tuple[int, ...]
    even: tuple[int, ...]
    uses: tuple[Use, ...]
    nbytes: int

    def kinds(self, member: int) -> list[str]:
        """The uses of the axis of a class, in the order of the program."""
        return [use.kind for use in self.uses if use.axis == member]

    @property
    def likeness(self) -> tuple[object, ...]:
        """Equal for clusters that repeat each other, such as the kernels of a model's layers."""
        # Classes have other numbers in each layer, so what is compared is how the axes are used.
        kinds = tuple([tuple(dict.fromkeys(self.kinds(member))) for member in self.axes])
        return self.shape, len(self.variables), self.splits, self.even, kinds


def clusters_of(
    classes: AxisClasses, variables: Mapping[int, Variable], movable: set[Variable], parts: int
) -> list[Cluster]:
    """The clusters of a program's variables, in the order of the program.

    Args:
      classes: the classes of the program's axes.
      variables: the variables by the number of their input.
      movable: those that may be laid out; a cluster with another one among the model's own is left out.
      parts: the number of parts into which an axis is split.
    """
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, variable in variables.items():
        traced = classes.inputs[number]
        if traced.shape and traced.shape == variable.shape and variable.policy.form != "rows":
            groups.setdefault((traced.shape, *map(classes.find, traced.axes)), []).append(number)
    found: list[Cluster] = []
    for numbers in groups.values():
        members = [variables[number] for number in numbers]
        # A layout is for the whole cluster, so one variable that must stay as it is keeps the others too.
        if movable.issuperset(members):
            found.append(_cluster(classes, members, numbers, parts))
    return found


def _cluster(classes: AxisClasses, members: Sequence[Variable], numbers: Sequence[int], parts: int) -> Cluster:
    traced = classes.inputs[numbers[0]]
    members = sorted(members, key=lambda variable: variable.derived)
    splits: list[int] = []
    even: list[int] = []
    for axis, member in enumerate(traced.axes):
        if all(can_split(one, axis, parts) for one in members):
            splits.append(axis)
            # Where others of the class cannot be split, the program has to communicate between them and this one.
            if classes.unit(member) % parts == 0:
                even.append(axis)
    # Slots come into no product; the cluster is used as the first of its variables that does.
    uses = next((classes.uses[number] for number in numbers if classes.uses[number]), [])
    return Cluster(
        variables=tuple(members),
        shape=traced.shape,
        axes=tuple(map(classes.find, traced.axes)),
        splits=tuple(splits),
        even=tuple(even),
        uses=tuple([Use(use.kind, classes.find(use.axis)) for use in uses]),
        nbytes=sum(one.size * one.dtype.itemsize for one in members),
    )


def can_split(variable: Variable, axis: int, parts: int) -> bool:
    """True if an axis can be divided equally, also where it is cut among the replicas already."""
    cut, size = variable.policy.cut, variable.shape[axis]
    if cut is not None and cut.axis == axis:
        parts *= cut.replicas
    return size > 0 and size % parts == 0 and (cut is None or cut.axis is not None)


def split_axis(layout: Layout) -> int | None:
    """The axis that a layout within a replica splits."""
    whole = (None, (), REPLICA_AXIS, (REPLICA_AXIS,))
    return next((axis for axis, names in enumerate(layout) if names not in whole), None)


def by_classes(clusters: Sequence[Cluster], chosen: Iterable[int]) -> Plan:
    """The plan that splits the axes of the chosen classes; of a cluster that has several, the first one chosen."""
    order = {axis: place for place, axis in enumerate(chosen)}
    plan: list[int | None] = []
    for cluster in clusters:
        among = [axis for axis in cluster.splits if cluster.axes[axis] in order]
        plan.append(min(among, key=lambda axis: order[cluster.axes[axis]], default=None))
    return tuple(plan)


def guesses(clusters: Sequence[Cluster], now: Plan) -> dict[str, Plan]:
    """Plans to begin with, by name.

    Args:
      clusters: the clusters.
      now: how they lie now.
    """
    members: dict[int, list[Cluster]] = {}
    for cluster in clusters:
        for axis in dict.fromkeys(cluster.even):
            if len(cluster.shape) > 1:
                members.setdefault(cluster.axes[axis], []).append(cluster)
    # The classes that touch few variables come first: those between two kernels, not the one along all layers.
    narrow = sorted(members, key=lambda axis: len(members[axis]))
    looked_up = [axis for axis in narrow if "lookup" in _first_uses(axis, members[axis])]
    pairs = _apart(clusters, [axis for axis in narrow if axis not in looked_up and _is_pair(axis, members[axis])])
    both = _apart(clusters, [*pairs, *looked_up])
    everything = _apart(clusters, [*both, *narrow])
    wide = sorted(members, key=lambda axis: -sum(map(attrgetter("nbytes"), members[axis])))
    return {
        "pairs and embeddings": by_classes(clusters, both),
        "pairs": by_classes(clusters, pairs),
        "all split": _filled(clusters, by_classes(clusters, everything)),
        "embeddings": by_classes(clusters, looked_up),
        "along all layers": _filled(clusters, by_classes(clusters, _apart(clusters, wide))),
        "by shape": now,
        "whole": (None,) * len(clusters),
    }


def _first_uses(axis: int, members: Sequence[Cluster]) -> set[str]:
    """The first use of the axis in each cluster that a product or a look-up uses."""
    found: set[str] = set()
    for one in members:
        found.update(one.kinds(axis)[:1])
    return found


def _is_pair(axis: int, members: Sequence[Cluster]) -> bool:
    """True if one product gives the axis and another one takes it."""
    # The first use of a variable is in the forward pass; in the backward pass each gives what it takes.
    kinds = _first_uses(axis, members)
    gives, takes = kinds & {"columns", "outputs"}, kinds & {"rows", "inputs"}
    return bool(gives and takes)


def _apart(clusters: Sequence[Cluster], order: Sequence[int]) -> list[int]:
    """The classes, in this order, of which no variable has two."""
    chosen: list[int] = []
    for axis in dict.fromkeys(order):
        taken = set(chosen)
        among = [cluster for cluster in clusters if axis in cluster.axes and len(cluster.shape) > 1]
        if all(taken.isdisjoint(cluster.axes) for cluster in among):
            chosen.append(axis)
    return chosen


def _filled(clusters: Sequence[Cluster], plan: Plan) -> Plan:
    """The plan, with what it leaves whole split along the longest axis; vectors aside."""
    filled: list[int | None] = []
    for cluster, axis in zip(clusters, plan, strict=True):
        if axis is None and len(cluster.shape) > 1 and cluster.splits:
            axis = max(cluster.splits, key=lambda axis: (axis in cluster.even, cluster.shape[axis]))
        filled.append(axis)
    return tuple(filled)
