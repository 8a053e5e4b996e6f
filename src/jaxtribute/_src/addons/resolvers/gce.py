"""Google Compute Engine: its APIs, a machine's own metadata, and the machines of an instance group."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from jaxtribute import ClusterSpec
from jaxtribute.cluster_resolver import ClusterResolver
from jaxtribute.errors import ClusterError, MissingLibraryError
from jaxtribute.extending import settings
from jaxtribute.typing import Foreign

# The metadata server is close to the machine: it answers soon or not at all.
_TIMEOUT_S = 5.0


def make_service(api: str, version: str, credentials: Foreign, discovery_url: str | None = None) -> Any:
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
            f"the {api} API needs Google's client library. HINT: pip install -e '.[gce]' in a clone, or pass service=."
        ) from error
    # With None Google's library looks for credentials by itself.
    used = None if credentials == "default" else credentials
    return discovery.build(api, version, credentials=used, cache_discovery=False, discoveryServiceUrl=discovery_url)


def metadata(path: str, environ: Mapping[str, str]) -> str:
    """Asks this virtual machine's metadata server, for instance for `project/project-id`.

    Raises:
      ClusterError: it does not answer, as on any machine outside that cloud.
    """
    host = environ.get("GCE_METADATA_HOST") or environ.get("GCE_METADATA_IP") or "metadata.google.internal"
    url = f"http://{host}/computeMetadata/v1/{path}"
    # Without the header the server does not answer, so that no web page can make a program ask it.
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            return response.read().decode()
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise ClusterError(
            f"the metadata server did not answer {url}: {error}. HINT: outside Google's cloud, say everything in the "
            "constructor: project and zone too."
        ) from error


class GCEClusterResolver(ClusterResolver):
    """The running machines of an instance group, asked of the Compute API; needs the extra `jaxtribute[gce]`.

    The tasks are the machines in the order of their internal addresses, as text.

    Args:
      project: the project's name.
      zone: the group's zone.
      instance_group: the group's name.
      port: the port of every task.
      task_type: the job of all machines.
      task_id: this machine's index, which nothing but you can say.
      rpc_layer: the protocol before the address that `master` returns.
      credentials: credentials for the API; those of the environment by default.
      service: a Compute API client to ask in place of one made here; `credentials` mean nothing then.

    Raises:
      MissingLibraryError: Google's client library is not installed, and no `service` was given.

    Source: `tf.distribute.cluster_resolver.GCEClusterResolver`.
    """

    def __init__(
        self,
        project: str,
        zone: str,
        instance_group: str,
        port: int,
        task_type: str = "worker",
        task_id: int | None = 0,
        rpc_layer: str = "grpc",
        credentials: Foreign = "default",
        service: Foreign = None,
    ) -> None:
        super().__init__(settings.text("task_type", task_type), task_id, rpc_layer)
        self._job = task_type
        self._project, self._zone = settings.text("project", project), settings.text("zone", zone)
        self._group = settings.text("instance_group", instance_group)
        self._port = settings.port("port", port)
        self._service = make_service("compute", "v1", credentials) if service is None else service

    def cluster_spec(self) -> ClusterSpec:
        """The group's running machines, at the resolver's port.

        Raises:
          ClusterError: none is running.
        """
        groups = self._service.instanceGroups()
        request = groups.listInstances(
            project=self._project,
            zone=self._zone,
            instanceGroup=self._group,
            body={"instanceState": "RUNNING"},
            orderBy="name",
        )
        addresses: list[str] = []
        # The API answers page by page.
        while request is not None:
            response = request.execute()
            # A page without machines has no `items` at all.
            addresses += [self._address(item["instance"]) for item in response.get("items", [])]
            request = groups.listInstances_next(previous_request=request, previous_response=response)
        if not addresses:
            raise ClusterError(
                f"the instance group {self._group!r} of project {self._project!r} in {self._zone!r} has no running "
                "machine. HINT: start its machines, or check the three names."
            )
        # In an order that does not change from call to call, as ranks must not.
        return ClusterSpec({self._job: sorted(addresses)})

    def _address(self, instance: str) -> str:
        # The group lists its machines by their URLs.
        name = instance.rpartition("/")[2]
        request = self._service.instances().get(project=self._project, zone=self._zone, instance=name)
        return f"{request.execute()['networkInterfaces'][0]['networkIP']}:{self._port}"

    @property
    def task_type(self) -> str | None:
        """The job of all machines; it cannot be set.

        Raises:
          ClusterError: on an attempt to set it.
        """
        return self._job

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        """Raises `ClusterError`: the group's machines are all of one job."""
        raise ClusterError(
            f"all machines of the group belong to job {self._job!r}, which cannot become {task_type!r}. "
            "HINT: pass task_type= to the constructor."
        )
