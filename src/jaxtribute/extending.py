"""`jd.extending`: what a strategy of your own is made of.

A strategy is a `jd.Strategy` around a `jd.StrategyExtended`, which says what is placed where: on which devices the
replicas run (a `ReplicaMesh`) and how variables are stored over them (a `Policy`).
"""

from jaxtribute._src.collectives.summation import AutoSum, OneDeviceSum, PackedSum, Packs, Summation, TreeSum
from jaxtribute._src.devices import default_devices, device_name, resolve_device
from jaxtribute._src.public import publish as _publish
from jaxtribute._src.values.mesh import ReplicaMesh
from jaxtribute._src.values.policies.base import Policy, Update
from jaxtribute._src.values.policies.central import CentralPolicy
from jaxtribute._src.values.policies.mirrored import MirroredPolicy
from jaxtribute._src.values.policies.on_read import OnReadPolicy
from jaxtribute._src.values.policies.plain import PlainPolicy
from jaxtribute._src.values.policies.sharded import ShardedPolicy

__all__ = [
    "AutoSum",
    "CentralPolicy",
    "MirroredPolicy",
    "OnReadPolicy",
    "OneDeviceSum",
    "PackedSum",
    "Packs",
    "PlainPolicy",
    "Policy",
    "ReplicaMesh",
    "ShardedPolicy",
    "Summation",
    "TreeSum",
    "Update",
    "default_devices",
    "device_name",
    "resolve_device",
]

_publish(__name__)
