"""Storage of a variable over the replicas, and the meaning of reads and writes in each context."""

from jaxtribute.values.policies.base import Policy as Policy
from jaxtribute.values.policies.base import Update as Update
from jaxtribute.values.policies.central import CentralPolicy as CentralPolicy
from jaxtribute.values.policies.mirrored import MirroredPolicy as MirroredPolicy
from jaxtribute.values.policies.on_read import OnReadPolicy as OnReadPolicy
from jaxtribute.values.policies.plain import PlainPolicy as PlainPolicy
from jaxtribute.values.policies.sharded import ShardedPolicy as ShardedPolicy
from jaxtribute.values.policies.sliced import SlicedPolicy as SlicedPolicy
