"""Modules of the add-ons that register something at a point of the core: each is imported when the core first asks."""

from __future__ import annotations

from jaxtribute._src import points

_HOME = __package__


def offer_all() -> None:
    """Tells each point which modules have something for it; imports none of them."""
    for point, modules in (
        (points.LIBRARIES, ("integrations.keras.activation", "integrations.nnx_writes")),
        (points.SOURCES, ("sources.tf_data", "sources.torch_loader", "sources.hugging_face")),
        (points.RESOLVERS, ("resolvers.tpu", "resolvers.slurm", "resolvers.kubernetes")),
        (points.STATEFUL, ("integrations.state", "integrations.keras.state")),
        (points.PICTURES, ("tools.visualize.picture",)),
        (points.PARAMETER_SERVERS, ("parameter_servers.engines.ray_node",)),
        (points.OLDER_METHODS, ("compat.legacy",)),
        (points.TRAFFIC, ("tools.hlo.exchanges",)),
    ):
        point.offer(*(f"{_HOME}.{module}" for module in modules))
