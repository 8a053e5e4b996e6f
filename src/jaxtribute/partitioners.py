"""`jd.experimental.partitioners`: how variables are cut over parameter servers."""

from jaxtribute._src.addons.parameter_servers.partitioners import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
)
from jaxtribute._src.public import publish as _publish

__all__ = [
    "FixedShardsPartitioner",
    "MaxSizePartitioner",
    "MinSizePartitioner",
    "Partitioner",
]

_publish(__name__)
