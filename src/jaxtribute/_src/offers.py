"""Modules of the add-ons that register something at a point of the core: each is imported when the core first asks."""

from __future__ import annotations

from jaxtribute._src.core import points

_HOME = __package__


def offer_all() -> None:
    """Tells each point which modules have something for it; imports none of them."""
    for point, modules in (
        (points.LIBRARIES, ("addons.keras.activation", "addons.models.nnx_writes", "addons.training.last_steps")),
        (points.SOURCES, ("addons.sources.tf_data", "addons.sources.torch_loader", "addons.sources.hugging_face")),
        (points.FIRST_BATCHES, ("addons.training.same_batches",)),
        (points.RESOLVERS, ("addons.resolvers.tpu", "addons.resolvers.slurm", "addons.resolvers.kubernetes")),
        (points.STATEFUL, ("addons.models.state", "addons.keras.state")),
        (points.PICTURES, ("addons.visualize.picture",)),
        (points.OLDER_METHODS, ("addons.compat.legacy",)),
        (points.LAYOUTS, ("addons.layouts.automatic",)),
        (points.BUDGETS, ("addons.memory.budgeting",)),
        (points.TAPES, ("addons.compat.unconnected",)),
        (points.WIRES, ("addons.wires.summing",)),
        (points.UNEVEN, ("addons.training.uneven_means",)),
        (points.RUNS, ("addons.training.replaced_arrays",)),
    ):
        point.offer(*(f"{_HOME}.{module}" for module in modules))
