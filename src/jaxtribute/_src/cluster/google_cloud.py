"""API services and the machine's own metadata, for the resolvers of Google's cloud."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from jaxtribute.errors import ClusterError, MissingLibraryError

_TIMEOUT_S = 5.0


def make_service(api: str, version: str, credentials: Any, discovery_url: str | None = None) -> Any:
    """A client of one of Google's APIs.

    Args:
      api: its name, such as `"compute"`.
      version: its version, such as `"v1"`.
      credentials: `"default"` for those of the environment, or what the client library takes.
      discovery_url: where the API's description is; the library's own copy by default.

    Raises:
      MissingLibraryError: the client library is not installed.
    """
    try:
        from googleapiclient import discovery  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise MissingLibraryError(
            f"the {api} API needs Google's client library. HINT: pip install 'jaxtribute[gce]', or pass service=."
        ) from error
    used = None if credentials == "default" else credentials
    return discovery.build(api, version, credentials=used, cache_discovery=False, discoveryServiceUrl=discovery_url)


def metadata(path: str, environ: Mapping[str, str]) -> str:
    """Asks this virtual machine's metadata server, for instance for `project/project-id`.

    Raises:
      ClusterError: it does not answer, as on any machine outside that cloud.
    """
    host = environ.get("GCE_METADATA_HOST") or environ.get("GCE_METADATA_IP") or "metadata.google.internal"
    url = f"http://{host}/computeMetadata/v1/{path}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            return response.read().decode()
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise ClusterError(
            f"the metadata server did not answer {url}: {error}. HINT: outside Google's cloud, say everything in the "
            "constructor: project and zone too."
        ) from error
