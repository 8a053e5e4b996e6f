"""Certificates of a run: alike on all machines that know the secret, and of use to nobody else."""

from __future__ import annotations

import os
import socket
import ssl
import sys
import threading
from pathlib import Path

import pytest

from jaxtribute._src.addons.launcher import certificates
from jaxtribute._src.addons.launcher.certificates import PREFIX, secret_of_run, write_certificates
from jaxtribute._src.addons.launcher.launch import launch
from jaxtribute._src.addons.launcher.options import Options
from jaxtribute._src.addons.messaging.certificates import AUTHORITY, CERTIFICATE, KEY

pytest.importorskip("cryptography")


def side(found: dict[str, str], purpose: ssl.Purpose) -> ssl.SSLContext:
    context = ssl.create_default_context(purpose, cafile=found[AUTHORITY])
    context.load_cert_chain(found[CERTIFICATE], found[KEY])
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def agree(server: dict[str, str], client: dict[str, str]) -> bool:
    """True if two processes with these certificates accept each other."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for end in (ours, theirs):
            end.settimeout(60)
        accepted: list[bool] = []

        def serve() -> None:
            try:
                with side(server, ssl.Purpose.CLIENT_AUTH).wrap_socket(ours, server_side=True) as secure:
                    secure.sendall(b"x")
                    accepted.append(True)
            except OSError:
                accepted.append(False)
                ours.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with side(client, ssl.Purpose.SERVER_AUTH).wrap_socket(theirs) as secure:
                heard = secure.recv(1) == b"x"
        except OSError:
            heard = False
        theirs.close()
        thread.join()
    return heard and accepted == [True]


def made(secret: bytes, folder: Path) -> dict[str, str]:
    folder.mkdir()
    return write_certificates(secret, folder)


def test_machines_that_know_the_secret_accept_each_other(tmp_path: Path) -> None:
    here, there = made(b"secret", tmp_path / "0"), made(b"secret", tmp_path / "1")
    other = made(b"another", tmp_path / "2")
    assert here[PREFIX] == there[PREFIX] != other[PREFIX]
    assert agree(here, there)
    assert agree(there, here)
    assert not agree(here, other)
    assert not agree(other, here)
    assert not agree(here, {**other, AUTHORITY: here[AUTHORITY]})


def test_a_run_has_certificates_where_nobody_else_can_know_their_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "version", lambda _: "0.12.1")
    alone, keyed = Options(("true",)), Options(("true",), nodes=2, key=b"0123456789abcdef")
    found = [secret_of_run(options, run, {}) for options in (alone, keyed) for run in ("1", "2")]
    assert None not in found
    assert len(set(found)) == 4
    assert secret_of_run(Options(("true",), nodes=2), "1", {}) is None
    assert secret_of_run(alone, "", {}) is None
    assert secret_of_run(alone, "1", {CERTIFICATE: ""}) is None
    for old in ("0.11.9", "0.9", "nonsense"):
        monkeypatch.setattr(certificates, "version", lambda _, old=old: old)
        assert secret_of_run(alone, "1", {}) is None


@pytest.mark.slow
@pytest.mark.parametrize("own", [None, "", "/own.pem"])
def test_ranks_are_told(own: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(certificates, "version", lambda _: "0.12.1")
    if own is not None:
        monkeypatch.setenv(CERTIFICATE, own)
    code = (
        "import os, pathlib, sys\n"
        f"path = os.environ.get('{CERTIFICATE}')\n"
        "there = path is not None and pathlib.Path(path).is_file()\n"
        "private = there and pathlib.Path(path).parent.stat().st_mode & 0o777 == 0o700\n"
        "name = os.environ['TF_CONFIG'][-3]\n"
        "pathlib.Path(sys.argv[1], name).write_text(f'{path} {there} {private}')\n"
    )
    assert launch(Options((sys.executable, "-c", code, str(tmp_path)), workers=2)) == 0
    told = [path.read_text().split() for path in sorted(tmp_path.iterdir())]
    assert len(told) == 2
    assert told[0] == told[1]
    if own is None:
        assert told[0][1:] == ["True", "True"]
        assert not os.path.exists(told[0][0])  # noqa: PTH110
    else:
        assert told[0] == [own or "None", "False", "False"]
