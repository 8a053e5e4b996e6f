"""`jd.experimental.rpc`: functions of one process that others call, over ZeroMQ. Takes `jaxtribute[rpc]`."""

try:
    from jaxtribute.rpc.client import Client as Client
    from jaxtribute.rpc.keys import make_keys as make_keys
    from jaxtribute.rpc.result import StatusOrResult as StatusOrResult
    from jaxtribute.rpc.server import Server as Server
except ModuleNotFoundError as _missing:
    if _missing.name not in ("zmq", "msgpack"):
        raise
    from jaxtribute.errors import MissingLibraryError

    raise MissingLibraryError(
        f"jd.experimental.rpc needs {_missing.name}. HINT: pip install 'jaxtribute[rpc]'."
    ) from _missing
