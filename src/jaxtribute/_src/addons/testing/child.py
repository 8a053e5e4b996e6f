"""The program of a runner's process: it calls functions, one after the other, until nobody asks any more."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pickle
import sys
import traceback
import types
from multiprocessing.connection import Connection

from jaxtribute._src.addons.testing.messages import Answer, Call, dump


def serve(connection: Connection) -> None:
    """Answers calls until the other end closes."""
    while True:
        try:
            request = connection.recv_bytes()
        except (EOFError, ConnectionError):
            return
        answer = pickle.dumps(_answer(pickle.loads(request)))
        # What was printed belongs to this call, so it is in the file before the caller looks.
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send_bytes(answer)


def _answer(call: Call) -> Answer:
    try:
        _prepare(call)
        function, args, kwargs = pickle.loads(call.payload)
        return Answer(value=dump(function(*args, **kwargs)))
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 (whatever it is, the caller is told)
        told = "".join(traceback.format_exception_only(error)).strip()
        return Answer(error=told, traceback=traceback.format_exc())


def _prepare(call: Call) -> None:
    """Makes the caller's modules importable, the one of the function under the name it has there."""
    sys.path.extend(entry for entry in call.path if entry not in sys.path)
    name, file = call.module
    if file is None or name in sys.modules or _is_found(name):
        return
    # pytest gives test modules names under which nobody else could import them, or the packages that they name.
    for parent in itertools.accumulate(name.split(".")[:-1], lambda outer, inner: f"{outer}.{inner}"):
        if parent not in sys.modules and not _is_found(parent):
            sys.modules[parent] = types.ModuleType(parent)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _is_found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):  # its package is unknown, or none
        return False


if __name__ == "__main__":
    handle = int(sys.argv[1])
    # Processes that a function starts must not keep the connection open.
    os.set_inheritable(handle, False)
    with Connection(handle) as inherited:
        serve(inherited)
