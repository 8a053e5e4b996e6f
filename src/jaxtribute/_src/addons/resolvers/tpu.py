"""The hosts of a TPU slice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxtribute import ClusterSpec
from jaxtribute._src.addons.resolvers.gce import make_service, metadata
from jaxtribute.cluster_resolver import ClusterResolver, Detection, register
from jaxtribute.errors import ArgumentError, ClusterError, ClusterSpecError
from jaxtribute.extending import parse_json, shown
from jaxtribute.typing import Device, Foreign

_ENDPOINTS, _NAME, _CONFIG = "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME", "TPU_CONFIG"
_HOSTS, _ID = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES"), "TPU_WORKER_ID"
# The hosts of a TPU listen here if no other port is named.
_PORT = "8470"


@dataclass(frozen=True, slots=True)
class TPUSystemMetadata:
    """Sizes and devices of a TPU system. Source: `tf.tpu.experimental.TPUSystemMetadata`.

    Attributes:
      num_cores: its devices.
      num_hosts: the processes that they belong to.
      num_of_cores_per_host: devices of a process.
      topology: the extent of their coordinates, such as `(2, 2, 1)`; None if they have none.
      devices: the devices of JAX.
    """

    num_cores: int
    num_hosts: int
    num_of_cores_per_host: int
    topology: tuple[int, ...] | None
    devices: tuple[Device, ...]


@register(rank=10)
class TPUClusterResolver(ClusterResolver):
    """The hosts of a TPU, one task each.

    JAX runs the program on every host of the TPU, where TensorFlow ran it on one machine outside.

    Args:
      tpu: `"local"` for the TPU of this host alone; `"grpc://10.0.0.2:8470,grpc://10.0.0.3:8470"` for hosts; else the
        TPU's name, to be asked of the Cloud TPU API (which needs the extra `jaxtribute[gce]`). By default the
        environment says it: `KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS`, `TPU_PROCESS_ADDRESSES` or `TPU_WORKER_HOSTNAMES`,
        `TPU_NAME`, `TPU_CONFIG`.
      zone: the TPU's zone; this machine's by default.
      project: the TPU's project; this machine's by default.
      job_name: the job of the hosts.
      coordinator_name: a job to add to the cluster for a coordinator.
      coordinator_address: the coordinator's address; it is needed with `coordinator_name`.
      credentials: credentials for the API; those of the environment by default.
      service: a Cloud TPU API client to ask in place of one made here.
      discovery_url: where the description of the API is.
      environ: the environment to read; this process's own by default.

    Raises:
      ArgumentError: `tpu` lists several TPUs, or `coordinator_name` has no address.
      ClusterSpecError: neither `tpu` nor the environment names a TPU.

    Source: `tf.distribute.cluster_resolver.TPUClusterResolver`.
    """

    looks_for = "TPU_WORKER_HOSTNAMES or KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"

    def __init__(
        self,
        tpu: str | Sequence[str] | None = None,
        zone: str | None = None,
        project: str | None = None,
        job_name: str = "worker",
        coordinator_name: str | None = None,
        coordinator_address: str | None = None,
        credentials: Foreign = "default",
        service: Foreign = None,
        discovery_url: str | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(job_name, 0, "grpc", environ=environ)
        if coordinator_name and not coordinator_address:
            raise ArgumentError(
                f"the coordinator {coordinator_name!r} has no address. HINT: pass coordinator_address='host:port'."
            )
        if _ID in self.environ:
            self._task_id = self._integer(self.environ, _ID)
        self._coordinator: dict[str, list[str]] = {}
        if coordinator_name and coordinator_address:
            self._coordinator[coordinator_name] = [coordinator_address]
        self._zone, self._project = zone, project
        self._tpu = self._named(tpu)
        self._credentials, self._service, self._discovery_url = credentials, service, discovery_url
        self._topology: bytes | None = None

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> Detection | None:
        """Finds a slice whose hosts the environment names."""
        name = _first_set(environ, (_ENDPOINTS, *_HOSTS))
        return Detection(cls(environ=environ), f"{name} is {environ[name]}") if name else None

    @staticmethod
    def connect(tpu: str | None = None, zone: str | None = None, project: str | None = None) -> TPUClusterResolver:
        """Makes a resolver. There is nothing else to connect: `TPUStrategy` joins the slice."""
        return TPUClusterResolver(tpu, zone, project)

    def cluster_spec(self) -> ClusterSpec:
        """The hosts, and the coordinator if there is one; empty for a local TPU.

        Raises:
          ClusterError: the API does not know the TPU, or it is not ready.
        """
        if self._tpu == "local":
            return ClusterSpec({})
        addresses = list(_addresses(self._tpu)) if self._tpu.startswith("grpc://") else self._ask()
        return ClusterSpec({str(self.task_type): addresses} | self._coordinator)

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """The address of a task, this process's by default, as `"grpc://host:port"`; empty for a local TPU."""
        return "" if self._tpu == "local" else super().master(task_type, task_id)

    def get_master(self) -> str:
        """The same as `master()`."""
        return self.master()

    def get_coordination_service_leader(self) -> str:
        """The task that hosts the coordination service, as `"/job:worker/task:0"`."""
        return f"/job:{self.get_job_name()}/task:0"

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        """The TPU devices of this process; starts JAX."""
        return {"TPU": sum(device.platform == "tpu" for device in jax.local_devices())}

    def get_tpu_system_metadata(self) -> TPUSystemMetadata:
        """The TPU devices of the cluster; starts JAX."""
        devices = tuple(device for device in jax.devices() if device.platform == "tpu")
        hosts = {device.process_index for device in devices}
        places: list[Any] = [getattr(device, "coords", ()) for device in devices]
        # Coordinates count from 0, so that the largest of an axis tells its length.
        topology = tuple(max(axis) + 1 for axis in zip(*places, strict=True)) or None
        per_host = len(devices) // len(hosts) if hosts else 0
        return TPUSystemMetadata(len(devices), len(hosts), per_host, topology, devices)

    def set_tpu_topology(self, serialized_tpu_topology: bytes) -> None:
        """Keeps a topology. JAX's devices know their own places."""
        self._topology = serialized_tpu_topology

    @property
    def tpu_hardware_feature(self) -> None:
        """None: JAX does not say what embedding hardware a TPU has."""
        return

    def _named(self, tpu: str | Sequence[str] | None) -> str:
        if isinstance(tpu, (list, tuple)):
            if len(tpu) != 1:
                raise ArgumentError(f"tpu is {tpu!r}. HINT: name one TPU; a slice of many hosts is one.")
            tpu = tpu[0]
        if tpu:
            return str(tpu)
        # What the machine says of its slice goes before a name, about which the API would have to be asked.
        hosts = self.environ.get(_first_set(self.environ, _HOSTS), "")
        slices = ",".join(f"grpc://{host.strip()}" for host in hosts.split(",")) if hosts else ""
        named = self.environ.get(_ENDPOINTS) or slices or self.environ.get(_NAME) or self._from_config()
        if not named:
            raise ClusterSpecError(
                f"no TPU is named: tpu is {tpu!r}, and the environment has none of {_ENDPOINTS}, {', '.join(_HOSTS)}, "
                f"{_NAME} and {_CONFIG}. HINT: pass the TPU's name, or 'local' for that of this host."
            )
        return named

    def _from_config(self) -> str:
        text = self.environ.get(_CONFIG)
        if not text:
            return ""
        try:
            config = parse_json(text)
            # What the constructor was told stays.
            self._project = self._project or config.get("project")
            self._zone = self._zone or config.get("zone")
            return config.get("tpu_node_name", "")
        except (ValueError, AttributeError) as error:
            raise ClusterSpecError(
                f"{_CONFIG} is {shown(text)}: {error}. HINT: expected a JSON object with tpu_node_name, project and "
                "zone."
            ) from None

    def _ask(self) -> list[str]:
        service = self._service or make_service("tpu", "v1", self._credentials, self._discovery_url)
        project = self._project or metadata("project/project-id", self.environ)
        zone = self._zone or metadata("instance/zone", self.environ).rpartition("/")[2]
        name = f"projects/{project}/locations/{zone}/nodes/{self._tpu}"
        try:
            node = service.projects().locations().nodes().get(name=name).execute()
        # Of any class: the client library need not be installed where a service was passed.
        except Exception as error:
            raise ClusterError(
                f"the Cloud TPU API does not know {name!r}: {error}. HINT: check the three names."
            ) from error
        if node.get("state") != "READY":
            raise ClusterError(
                f"TPU {self._tpu!r} is not ready; its state is {node.get('state')!r}. HINT: wait until it is READY."
            )
        # Of a TPU of one host the address stands at the node itself.
        return [f"{end['ipAddress']}:{end['port']}" for end in node.get("networkEndpoints", [node])]


def _first_set(environ: Mapping[str, str], names: Sequence[str]) -> str:
    """The first of some variables that is set, and not empty; an empty name if none is."""
    return next(filter(environ.get, names), "")


def _addresses(endpoints: str) -> Iterable[str]:
    for endpoint in endpoints.split(","):
        address = endpoint.strip().removeprefix("grpc://")
        yield address if ":" in address else f"{address}:{_PORT}"
