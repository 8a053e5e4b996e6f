"""The web page of a run: three files and its state as JSON. It only reads.

On loopback everyone on this machine may look. Beyond it a token is needed, which is compared in constant time. Requests
whose `Host` is not this server are refused, so that no page of the web can make a browser ask under another name. What
a job prints reaches the page as JSON and is shown as text; the page's policy lets no other script run.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import threading
import time
from collections.abc import Awaitable, Callable
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING

from jaxtribute._src.addons.live.metrics import prometheus
from jaxtribute._src.addons.live.state import Run
from jaxtribute.errors import ArgumentError, MissingLibraryError
from jaxtribute.typing import Json

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_FRESH_S = 0.5
_SHORTEST = 16
_PAGE = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Cached:
    """State of a run as JSON and as text for Prometheus, read at most twice a second however many look.

    Args:
      run: the run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._text = self._metrics = b""
        self._read = -_FRESH_S

    def text(self) -> bytes:
        """The state as JSON."""
        return self._fresh()[0]

    def metrics(self) -> bytes:
        """The state as text for Prometheus."""
        return self._fresh()[1]

    def health(self) -> str:
        """`ok`, or that the run cannot be read, which is an error.

        Raises:
          ArgumentError: likewise; it names nothing.
        """
        try:
            self._fresh()
        except ArgumentError as error:
            raise ArgumentError("the run cannot be read. HINT: see the folder that is served.") from error
        return "ok"

    def _fresh(self) -> tuple[bytes, bytes]:
        # One visitor's request reads; others meanwhile wait and get the same.
        with self._lock:
            if time.monotonic() - self._read > _FRESH_S:
                state = self._run.state()
                self._text, self._metrics = _as_json(state), prometheus(state)
                self._read = time.monotonic()
            return self._text, self._metrics


def _as_json(state: Json) -> bytes:
    # Letters beyond ASCII are escaped, so that halves of surrogates that a job printed are no error.
    return json.dumps(state, separators=(",", ":"), allow_nan=False).encode("ascii")


def is_loopback(host: str) -> bool:
    """True if a host is this machine, and reached from it alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_token(host: str, token: str | None) -> None:
    """Refuses to serve beyond this machine without a token, or with one that can be guessed.

    Raises:
      ArgumentError: likewise.
    """
    if token is not None and len(token) < _SHORTEST:
        raise ArgumentError(
            f"the token has {len(token)} letters, and needs {_SHORTEST} at least. "
            "HINT: `openssl rand -hex 16` makes one."
        )
    if token is None and not is_loopback(host):
        raise ArgumentError(
            f"--host {host} would show the run to the network. HINT: give --token-file too, with a secret of "
            f"{_SHORTEST} letters or more, or leave --host out and use `ssh -L`."
        )


def application(run: Run, host: str, token: str | None) -> Starlette:
    """The page as an ASGI application.

    Args:
      run: the run that it shows.
      host: the address that it is served at.
      token: the secret that visitors give, as `?token=` or in an `Authorization: Bearer` header; None for none.

    Raises:
      ArgumentError: a token is missing or too short.
      MissingLibraryError: starlette is not installed.
    """
    check_token(host, token)
    check_library()
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    cached = Cached(run)

    def refused(request: Request) -> Response | None:
        # A web page can let a browser ask this machine under a name of its own; by that name it is refused.
        if token is None and not is_loopback(_host_of(request.headers.get("host", ""))):
            return Response("this address is not served", 421, _HEADERS, "text/plain")
        if token is not None and not _knows(request, token):
            return Response("a token is needed: add ?token=... to the address", 401, _HEADERS, "text/plain")
        return None

    def page(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
        content = files("jaxtribute._src.addons.live").joinpath("page", name).read_bytes()

        async def answer(request: Request) -> Response:
            # Script and style hold nothing of the run, and a browser asks for them without the token.
            refusal = refused(request) if name == "page.html" or token is None else None
            return refusal or Response(content, 200, _HEADERS, kind)

        return answer

    answers = {
        "/state.json": _answer(cached.text, "application/json", refused),
        "/metrics": _answer(cached.metrics, "text/plain; version=0.0.4", refused),
        # For probes, which have no token: it tells nothing of the run.
        "/healthz": _answer(cached.health, "text/plain", refused if token is None else lambda _: None),
    }
    routes = [Route(path, page(name, kind), methods=["GET"]) for path, (name, kind) in _PAGE.items()]
    return Starlette(routes=[*routes, *(Route(path, answer, methods=["GET"]) for path, answer in answers.items())])


def _answer(
    told: Callable[[], str | bytes], kind: str, refused: Callable[[Request], Response | None]
) -> Callable[[Request], Response]:
    """Makes what answers a request with the run's state."""
    from starlette.responses import Response

    # Not async, so that the server calls it in a thread of its pool: it reads files.
    def answer(request: Request) -> Response:
        refusal = refused(request)
        if refusal is not None:
            return refusal
        try:
            return Response(told(), 200, _HEADERS, kind)
        except ArgumentError as error:  # the folder is gone
            return Response(str(error), 503, _HEADERS, "text/plain")

    return answer


def check_library() -> None:
    """Raises MissingLibraryError unless starlette and uvicorn are installed."""
    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            raise MissingLibraryError(
                f"serving the page needs {name}, which is not installed. HINT: pip install -e '.[live]' in a clone."
            )


def _host_of(header: str) -> str:
    """The host in a `Host` header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _knows(request: Request, token: str) -> bool:
    given = request.query_params.get("token", "")
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        given = secret
    # In a time that does not tell how many letters were right.
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())
