"""`jd.extending`: what a strategy of your own is made of.

A strategy is a `jd.Strategy` around a `jd.StrategyExtended`, which says what is placed where: on which devices the
replicas run (a `ReplicaMesh`) and how variables are stored over them (a `Policy`).
"""

from jaxtribute.collectives.summation import AutoSum as AutoSum
from jaxtribute.collectives.summation import OneDeviceSum as OneDeviceSum
from jaxtribute.collectives.summation import PackedSum as PackedSum
from jaxtribute.collectives.summation import Packs as Packs
from jaxtribute.collectives.summation import Summation as Summation
from jaxtribute.collectives.summation import TreeSum as TreeSum
from jaxtribute.devices import default_devices as default_devices
from jaxtribute.devices import device_name as device_name
from jaxtribute.devices import resolve_device as resolve_device
from jaxtribute.values.mesh import ReplicaMesh as ReplicaMesh
from jaxtribute.values.policies import CentralPolicy as CentralPolicy
from jaxtribute.values.policies import MirroredPolicy as MirroredPolicy
from jaxtribute.values.policies import OnReadPolicy as OnReadPolicy
from jaxtribute.values.policies import PlainPolicy as PlainPolicy
from jaxtribute.values.policies import Policy as Policy
from jaxtribute.values.policies import ShardedPolicy as ShardedPolicy
from jaxtribute.values.policies import Update as Update
