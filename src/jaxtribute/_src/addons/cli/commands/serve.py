"""`jaxtribute serve`: a run as a web page, while it goes on."""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from pathlib import Path

HELP = "serve a web page that shows what a run does and where its time goes"
_PORT = 8631


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tells the parser what the command takes."""
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="the folder that `jaxtribute launch --run` records to")
    add("--host", default="127.0.0.1", help="the address to listen at (127.0.0.1); others need --token-file")
    add("--port", type=int, default=_PORT, help=f"the port to listen at ({_PORT}); 0 for a free one")
    add("--token-file", type=Path, metavar="FILE", help="a file with the secret that visitors must give")
    parser.epilog = "The page only reads. With a token its address ends in ?token=SECRET."


class Seldom(logging.Filter):
    """Lets a message through the first time, the tenth, the hundredth: strangers must not fill the terminal."""

    def __init__(self) -> None:
        super().__init__()
        self._counts = Counter[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        """True if the message is to be shown; it then tells its number."""
        text = str(record.msg)
        self._counts[text] += 1
        count = self._counts[text]
        if count > 1:
            record.msg = f"{text} ({count:,} times until now)"
        return str(count).strip("0") == "1"


def run(arguments: argparse.Namespace) -> int:
    """Serves the page until Ctrl-C."""
    from jaxtribute._src.addons.live import server
    from jaxtribute._src.addons.live.state import Run
    from jaxtribute.errors import JaxtributeError

    try:
        token = None if arguments.token_file is None else _read(arguments.token_file)
        application = server.application(Run(arguments.run), arguments.host, token)
    except JaxtributeError as error:
        sys.stderr.write(f"jaxtribute serve: {error}\n")
        return 2
    return _serve(application, arguments.host, arguments.port, "" if token is None else "/?token=...")


def _serve(application: object, host: str, port: int, path: str) -> int:
    import socket

    import uvicorn

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Before the server starts, so that the address can be told, also if the port was 0.
    try:
        listener = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        sys.stderr.write(f"jaxtribute serve: cannot listen at {host}:{port}: {error}. HINT: give --port 0.\n")
        return 2
    shown = f"[{host}]" if ":" in host else host
    sys.stdout.write(f"http://{shown}:{listener.getsockname()[1]}{path}\n")
    sys.stdout.flush()
    # The address of a request may hold the token, so requests are not logged.
    config = uvicorn.Config(application, log_level="warning", access_log=False, server_header=False)  # pyright: ignore[reportArgumentType]
    logging.getLogger("uvicorn.error").addFilter(Seldom())
    uvicorn.Server(config).run(sockets=[listener])
    return 0


def _read(path: Path) -> str:
    from jaxtribute._src.regular_files import known_to_all, read_secret
    from jaxtribute.errors import ArgumentError

    try:
        found = read_secret(path).decode().strip()
        if (warning := known_to_all(path)) is not None:
            sys.stderr.write(f"jaxtribute serve: {warning}\n")
        return found
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(
            f"--token-file {path} cannot be read: {error}. HINT: `openssl rand -hex 16 > {path}`."
        ) from error
