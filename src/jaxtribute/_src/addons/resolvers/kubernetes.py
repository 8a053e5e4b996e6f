"""The pods of a Kubernetes cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtribute import ClusterSpec
from jaxtribute.cluster_resolver import ClusterResolver, Detection, register
from jaxtribute.errors import ClusterError, ClusterSpecError, MissingLibraryError
from jaxtribute.extending import settings
from jaxtribute.typing import Foreign

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

_INDEX, _HOST, _HOSTNAME = "JOB_COMPLETION_INDEX", "KUBERNETES_SERVICE_HOST", "HOSTNAME"
_INDEX_OF_POD = "batch.kubernetes.io/job-completion-index"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_POLL_S = 1.0
_ANSWER_S = 30.0


class KubernetesExecutableLocation(Enum):
    """Place where the program runs, which decides how it finds the Kubernetes API server.

    Source: `tf.distribute.cluster_resolver.KubernetesExecutableLocation`.
    """

    WITHIN_CLUSTER = 0
    """In a pod: with the pod's service account."""
    OFF_CLUSTER = 1
    """Elsewhere: with the kubeconfig file, `KUBECONFIG` or `~/.kube/config`."""


@register(rank=30)
class KubernetesClusterResolver(ClusterResolver):
    """The running pods of some labels, asked of the Kubernetes API server; needs the extra `jaxtribute[kubernetes]`.

    The tasks of a job are its pods in the order of their completion index, if they belong to an indexed Job, and
    otherwise of their names. A task's host is the pod's address. (TensorFlow's documents say so too, its code takes the
    address of the node.)

    Args:
      job_to_label_mapping: the label selectors of each job's pods; `{"worker": ["job-name=tensorflow"]}` by default.
      tf_server_port: the port of every task.
      rpc_layer: the protocol before the address that `master` returns.
      override_client: a `kubernetes.client.CoreV1Api` to ask in place of one made here.
      executable_location: where this program runs.
      namespace: the pods' namespace; all namespaces by default, which a pod may see only with a cluster role.
      num_tasks: how many pods each job has, to wait for those that are yet to come.
      timeout_s: seconds to wait in `cluster_spec` for pods that are not running.
      environ: the environment to read; this process's own by default.

    Set `task_type` and `task_id` before a strategy uses it; in a pod of an indexed Job, `detect` does.

    Raises:
      ArgumentError: `executable_location` is no `KubernetesExecutableLocation`.
      MissingLibraryError: the Kubernetes client is not installed, and none was given.
      ClusterError: the client finds no way to the API server.

    Source: `tf.distribute.cluster_resolver.KubernetesClusterResolver`.
    """

    looks_for = "JOB_COMPLETION_INDEX, which an indexed Job of Kubernetes sets"

    def __init__(
        self,
        job_to_label_mapping: Mapping[str, Sequence[str]] | None = None,
        tf_server_port: int = 8470,
        rpc_layer: str = "grpc",
        override_client: CoreV1Api | None = None,
        executable_location: KubernetesExecutableLocation = KubernetesExecutableLocation.WITHIN_CLUSTER,
        *,
        namespace: str | None = None,
        num_tasks: Mapping[str, int] | None = None,
        timeout_s: float = 0.0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(rpc_layer=rpc_layer, environ=environ)
        executable_location = settings.member("executable_location", executable_location, KubernetesExecutableLocation)
        self._selectors = dict(job_to_label_mapping or {"worker": ["job-name=tensorflow"]})
        self._port = settings.port("tf_server_port", tf_server_port)
        self._client: Any = override_client or _make_client(executable_location, self.environ)
        # A client that was passed, such as a stand-in for tests, may not know the option.
        self._options: dict[str, Any] = {} if override_client else {"_request_timeout": _ANSWER_S}
        self._namespace = settings.text("namespace", namespace, optional=True)
        self._num_tasks = self._counts_of("num_tasks", num_tasks)
        self._timeout_s = settings.amount("timeout_s", timeout_s)

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> Detection | None:
        """Finds a pod of an indexed Job: its worker is the Job's, at the pod's index. Other pods are not found."""
        if _INDEX not in environ or _HOST not in environ:
            return None
        index, hostname = cls._integer(environ, _INDEX), environ.get(_HOSTNAME, "")
        # The name of the Job stands nowhere else in a pod's environment.
        job = hostname.removesuffix(f"-{index}")
        if job in ("", hostname):
            raise ClusterSpecError(
                f"{_INDEX} is {index} and {_HOSTNAME} is {hostname!r}: expected the name of the Job and '-{index}'. "
                "HINT: build KubernetesClusterResolver yourself, with the Job's label selector."
            )
        # The file is there in pods alone; without it the pods of all namespaces are asked for.
        space = _ACCOUNT / "namespace"
        namespace = space.read_text(encoding="utf-8").strip() if space.exists() else None
        resolver = cls({"worker": [f"job-name={job}"]}, namespace=namespace, environ=environ)
        resolver.task_type, resolver.task_id = "worker", index
        return Detection(resolver, f"{_INDEX} is {index} in a pod of the Job {job!r}")

    def cluster_spec(self) -> ClusterSpec:
        """The pods as they are now, at the resolver's port.

        Raises:
          ClusterError: a pod is not running, or there are fewer than `num_tasks`, after `timeout_s` seconds; or the
            API server refuses or does not answer.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            pods = {job: self._pods(selectors) for job, selectors in self._selectors.items()}
            problem = self._problem(pods)
            if not problem:
                return ClusterSpec({job: self._addresses(found) for job, found in pods.items()})
            if time.monotonic() >= deadline:
                raise ClusterError(f"{problem}, after {self._timeout_s:g} s. HINT: {self._remedy()}")
            # A tenth of the time at most, so that a short wait looks several times.
            time.sleep(min(_POLL_S, self._timeout_s / 10))

    def _addresses(self, pods: Sequence[Any]) -> list[str]:
        return [f"{pod.status.pod_ip}:{self._port}" for pod in pods]

    def _pods(self, selectors: Sequence[str]) -> list[Any]:
        found: list[Any] = []
        for selector in selectors:
            found += sorted(self._ask(selector), key=_place)
        return found

    def _ask(self, selector: str) -> list[Any]:
        try:
            if self._namespace is None:
                return self._client.list_pod_for_all_namespaces(label_selector=selector, **self._options).items
            return self._client.list_namespaced_pod(self._namespace, label_selector=selector, **self._options).items
        except Exception as error:
            # Known by their module: where a client was passed, the library need not be installed.
            if type(error).__module__.partition(".")[0] not in ("kubernetes", "urllib3"):
                raise
            where = "all namespaces" if self._namespace is None else f"namespace {self._namespace!r}"
            status = getattr(error, "status", None)
            told = f"{status} {getattr(error, 'reason', '')}" if status else str(error)
            raise ClusterError(
                f"the Kubernetes API server did not list the pods {selector!r} of {where}: {told}. HINT: the service "
                "account needs the verb 'list' on pods; pass namespace= if it has that in one namespace only."
            ) from error

    def _problem(self, pods: dict[str, list[Any]]) -> str:
        for job, found in pods.items():
            idle = [f"{pod.metadata.name!r} is {pod.status.phase}" for pod in found if pod.status.phase != "Running"]
            if idle:
                return f"not every pod of job {job!r} is running: {', '.join(idle)}"
            # A job whose number nobody has told must have a pod at least.
            expected = self._num_tasks.get(job, 1)
            if len(found) < expected:
                return f"job {job!r} has {len(found)} of {expected} pods with the labels {list(self._selectors[job])}"
        return ""

    def _remedy(self) -> str:
        if self._timeout_s:
            return "see `kubectl describe pod` for why they do not start."
        return "pass timeout_s= to wait for pods, and num_tasks= for those that are yet to be made."


def _place(pod: Foreign) -> tuple[int, str]:
    labels = getattr(pod.metadata, "labels", None)
    index = labels.get(_INDEX_OF_POD) if isinstance(labels, dict) else None
    # As a number: by their names, pod 10 comes before pod 2.
    return (int(index) if index is not None else -1, pod.metadata.name)


def _make_client(location: KubernetesExecutableLocation, environ: Mapping[str, str]) -> Any:
    try:
        from kubernetes import client, config
        from kubernetes.config.incluster_config import InClusterConfigLoader
    except ImportError as error:
        raise MissingLibraryError(
            "KubernetesClusterResolver needs the Kubernetes client. HINT: pip install -e '.[kubernetes]' in a clone."
        ) from error
    settings: Any = client.Configuration()
    try:
        if location is KubernetesExecutableLocation.OFF_CLUSTER:
            config.load_kube_config(config_file=environ.get("KUBECONFIG"), client_configuration=settings)
        else:
            loader = InClusterConfigLoader(str(_ACCOUNT / "token"), str(_ACCOUNT / "ca.crt"), environ=environ)
            loader.load_and_set(settings)
    except config.ConfigException as error:
        raise ClusterError(
            f"there is no way to the Kubernetes API server from {location.name}: {error}. HINT: in a pod, mount its "
            "service account; elsewhere pass executable_location=KubernetesExecutableLocation.OFF_CLUSTER and set "
            "KUBECONFIG."
        ) from error
    return client.CoreV1Api(client.ApiClient(settings))
