"""`jd.extending`: what a strategy of your own is made of.

A strategy is a `jd.Strategy` around a `jd.StrategyExtended`, which says what is placed where: on which devices the
replicas run (a `ReplicaMesh`) and how variables are stored over them (a `Policy`).
"""

from jaxtribute.collectives.summation import AutoSum, OneDeviceSum, PackedSum, Packs, Summation, TreeSum
from jaxtribute.devices import default_devices, device_name, resolve_device
from jaxtribute.values.mesh import ReplicaMesh
from jaxtribute.values.policies import (
    CentralPolicy,
    MirroredPolicy,
    OnReadPolicy,
    PlainPolicy,
    Policy,
    ShardedPolicy,
    Update,
)

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
