"""`jd.experimental.rpc`: functions of one process that others call, over ZeroMQ. Takes `jaxtribute[rpc]`."""

from jaxtribute.rpc.client import Client as Client
from jaxtribute.rpc.keys import make_keys as make_keys
from jaxtribute.rpc.result import StatusOrResult as StatusOrResult
from jaxtribute.rpc.server import Server as Server
