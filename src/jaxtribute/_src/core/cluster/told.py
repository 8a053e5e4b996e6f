"""Settings of a worker in its cluster, as the environment tells them; `runtime.py` has the table."""

from __future__ import annotations

import os
from functools import partial

from jaxtribute._src.core.cluster.addresses import Address
from jaxtribute._src.core.environment import reader, seconds
from jaxtribute.errors import ClusterSpecError, ConfigError

BIND = "JAXTRIBUTE_BIND_ADDRESS"
SILENCE = "JAXTRIBUTE_SILENCE_S"
TIMEOUT = "JAXTRIBUTE_TIMEOUT_S"
ISLANDS = "JAXTRIBUTE_INCARNATION"
"""Set where the launcher starts each process again by itself."""
silence_s = reader(SILENCE, partial(seconds, SILENCE, 20.0, 1.0))
deadline_s = reader(TIMEOUT, partial(seconds, TIMEOUT, 600.0, 1.0))


def bind_address() -> str:
    """The address where the coordination service is to listen, if the environment names one; else empty.

    Raises:
      ConfigError: it is no address.
    """
    text = os.environ.get(BIND, "")
    try:
        return text and str(Address.parse(text))
    except ClusterSpecError as error:
        raise ConfigError(f"{BIND}: {error}") from error


reader(BIND, bind_address)
