"""Types of jaxlib's compiled modules, which ship without any: what the library uses, and `Any` for the rest."""

from typing import Any

def __getattr__(name: str) -> Any: ...
