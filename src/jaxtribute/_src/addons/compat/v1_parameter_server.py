"""`ParameterServerStrategy` of version 1; in a module of its own, which loads what parameter servers need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtribute._src.addons.compat.v1_strategies import Strategy
from jaxtribute._src.addons.parameter_servers import strategy as parameter_server

if TYPE_CHECKING:
    from jaxtribute.cluster_resolver import ClusterResolver


class ParameterServerStrategy(Strategy, parameter_server.ParameterServerStrategy):
    """`jd.ParameterServerStrategy`: it has a coordinator, where TensorFlow's has a session on each worker.

    Args:
      cluster_resolver: as there; by default what `TF_CONFIG` says.

    Source: `tf.compat.v1.distribute.experimental.ParameterServerStrategy`.
    """

    def __init__(self, cluster_resolver: ClusterResolver | None = None) -> None:
        if cluster_resolver is None:
            from jaxtribute.cluster_resolver import TFConfigClusterResolver

            cluster_resolver = TFConfigClusterResolver()
        super().__init__(cluster_resolver)
