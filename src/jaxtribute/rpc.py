"""`jd.experimental.rpc`: functions of one process that others call, over ZeroMQ. Takes `jaxtribute[rpc]`."""

from jaxtribute._src.public import publish as _publish

try:
    from jaxtribute._src.addons.rpc.client import Client as Client
    from jaxtribute._src.addons.rpc.protocol import StatusOrResult as StatusOrResult
    from jaxtribute._src.addons.rpc.protocol import make_keys as make_keys
    from jaxtribute._src.addons.rpc.server import Server as Server
except ModuleNotFoundError as _missing:
    if _missing.name not in ("zmq", "msgpack"):
        raise
    from jaxtribute.errors import MissingLibraryError

    raise MissingLibraryError(
        f"jd.experimental.rpc needs {_missing.name}. HINT: pip install -e '.[rpc]' in a clone."
    ) from _missing

__all__ = ["Client", "Server", "StatusOrResult", "make_keys"]

_publish(__name__)
