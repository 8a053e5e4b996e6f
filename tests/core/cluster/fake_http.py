"""A server on loopback that answers GET and POST with the JSON or text that a test gives it."""

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Answer = tuple[int, Any]


@dataclass
class Request:
    """What a client asked; the names of headers in lower case."""

    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any = None


@dataclass
class Server:
    """A running server and what it was asked."""

    port: int
    requests: list[Request] = field(default_factory=list[Request])

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def serving(answer: Callable[[Request], Answer]) -> Generator[Server]:
    """Answers each request with a status and a body: text as it is, anything else as JSON."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            request = Request(
                parts.path, parse_qs(parts.query), {name.lower(): value for name, value in self.headers.items()}, body
            )
            server.requests.append(request)
            status, content = answer(request)
            data = (content if isinstance(content, str) else json.dumps(content)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if isinstance(content, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server = Server(http.server_port)
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
