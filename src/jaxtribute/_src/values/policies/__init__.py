"""Storage of a variable over the replicas, in terms of arrays."""

from jaxtribute._src.values.policies.base import Policy as Policy
from jaxtribute._src.values.policies.base import Update as Update
from jaxtribute._src.values.policies.central import CentralPolicy as CentralPolicy
from jaxtribute._src.values.policies.mirrored import MirroredPolicy as MirroredPolicy
from jaxtribute._src.values.policies.on_read import OnReadPolicy as OnReadPolicy
from jaxtribute._src.values.policies.plain import PlainPolicy as PlainPolicy
from jaxtribute._src.values.policies.sharded import ShardedPolicy as ShardedPolicy
from jaxtribute._src.values.policies.sliced import SlicedPolicy as SlicedPolicy
