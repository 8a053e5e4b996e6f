"""Checks the certificates by which the processes of a job know each other, where the environment names them."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from jaxtribute._src.regular_files import read_small

CERTIFICATE, KEY, AUTHORITY = FILES = "JAX_MTLS_CERT_FILE", "JAX_MTLS_KEY_FILE", "JAX_MTLS_CA_FILE"
"""JAX's variables for a process's certificate, its key, and the authority that has signed those of all processes."""


def problem_of(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Says what is wrong with the certificates that an environment names, and the remedy; None if nothing is.

    Args:
      environment: where JAX's variables may stand. An empty `JAX_MTLS_CERT_FILE` means that none are wanted.
    """
    files = [environment.get(name, "") for name in FILES]
    if not environment.get(CERTIFICATE, "") and (CERTIFICATE in environment or not any(files)):
        return None
    absent = [name for name, file in zip(FILES, files, strict=True) if not file]
    if absent:
        return (
            f"{', '.join(absent)} is not set, but the other files of certificates are",
            f"set all of {', '.join(FILES)}, or none: `jaxtribute launch` makes them.",
        )
    for name, file in zip(FILES, files, strict=True):
        try:
            read_small(file)
        except (OSError, ValueError) as error:
            return (
                f"{name}={file} cannot be read: {error}",
                "name a PEM file that this user may read; `jaxtribute launch` makes new ones if none are named.",
            )
    try:
        context = ssl.create_default_context(cafile=files[2])
        context.load_cert_chain(*files[:2], password=lambda: "")  # nobody is asked for one
    except (OSError, ValueError) as error:
        return (
            f"{', '.join(files)} are no certificates that belong together: {error}",
            f"let {CERTIFICATE} name a certificate, {KEY} its own key without a password, {AUTHORITY} who signed both.",
        )
    return None
