"""`KubernetesClusterResolver` with the official client, against an API server on loopback."""

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from cluster.fake_http import Answer, serving
from jaxtribute._src.addons.resolvers import kubernetes
from jaxtribute.cluster_resolver import KubernetesClusterResolver, KubernetesExecutableLocation, detect
from jaxtribute.errors import ArgumentError, ClusterError, ClusterSpecError, MissingLibraryError

OFF_CLUSTER = KubernetesExecutableLocation.OFF_CLUSTER


def pod(name: str, ip: str, phase: str = "Running", index: int | None = None) -> dict[str, Any]:
    labels = {} if index is None else {"batch.kubernetes.io/job-completion-index": str(index)}
    status = {"phase": phase, "podIP": ip, "hostIP": "10.9.9.9"}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def pods(*listed: dict[str, Any]) -> Answer:
    return 200, {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": list(listed)}


def kubeconfig(folder: Path, host: str) -> dict[str, str]:
    """An environment whose kubeconfig leads to the server."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fake", "cluster": {"server": f"http://{host}"}}],
        "users": [{"name": "me", "user": {"token": "secret"}}],
        "contexts": [{"name": "here", "context": {"cluster": "fake", "user": "me"}}],
        "current-context": "here",
    }
    path = folder / "config"
    path.write_text(json.dumps(config))
    return {"KUBECONFIG": str(path)}


def test_pods_are_asked_for_by_label_and_listed_by_name(tmp_path: Path) -> None:
    answers = {
        "job-name=a": pods(pod("b", "10.0.0.2"), pod("a", "10.0.0.1")),
        "job-name=b": pods(pod("c", "10.0.0.3")),
        "app=ps": pods(pod("ps", "10.0.0.4")),
    }
    with serving(lambda request: answers[request.query["labelSelector"][0]]) as server:
        resolver = KubernetesClusterResolver(
            {"worker": ["job-name=a", "job-name=b"], "ps": ["app=ps"]},
            tf_server_port=2222,
            executable_location=OFF_CLUSTER,
            environ=kubeconfig(tmp_path, server.host),
        )
        spec = resolver.cluster_spec()
        resolver.task_type, resolver.task_id = "worker", 1
        assert resolver.master() == "grpc://10.0.0.2:2222"
    assert spec == {"worker": ["10.0.0.1:2222", "10.0.0.2:2222", "10.0.0.3:2222"], "ps": ["10.0.0.4:2222"]}
    assert {request.path for request in server.requests} == {"/api/v1/pods"}
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer secret"}


def test_pods_of_an_indexed_job_are_listed_by_index(tmp_path: Path) -> None:
    listed = pods(pod("j-10-x", "10.0.0.10", index=10), pod("j-2-y", "10.0.0.2", index=2))
    with serving(lambda request: listed) as server:
        resolver = KubernetesClusterResolver(
            executable_location=OFF_CLUSTER, namespace="mine", environ=kubeconfig(tmp_path, server.host)
        )
        assert resolver.cluster_spec() == {"worker": ["10.0.0.2:8470", "10.0.0.10:8470"]}
    [request] = server.requests
    assert request.path == "/api/v1/namespaces/mine/pods"
    assert request.query["labelSelector"] == ["job-name=tensorflow"]


def test_pods_that_are_yet_to_run_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "_POLL_S", 0.01)
    stages = [
        pods(),
        pods(pod("a", "", "Pending")),
        pods(pod("a", "10.0.0.1")),
        pods(pod("a", "10.0.0.1"), pod("b", "10.0.0.2")),
    ]
    with serving(lambda request: stages[min(len(server.requests), 4) - 1]) as server:
        resolver = KubernetesClusterResolver(
            executable_location=OFF_CLUSTER,
            num_tasks={"worker": 2},
            timeout_s=60,
            environ=kubeconfig(tmp_path, server.host),
        )
        assert resolver.cluster_spec().num_tasks("worker") == 2


@pytest.mark.parametrize(
    ("answer", "timeout_s", "says"),
    [
        (pods(pod("a", "", "Pending")), 0, r"'worker' is running: 'a' is Pending, after 0 s\. HINT: pass timeout_s="),
        (pods(pod("a", "", "Failed")), 0.01, r"'a' is Failed, after 0.01 s\. HINT: see `kubectl describe pod`"),
        (pods(), 0, r"job 'worker' has 0 of 1 pods with the labels \['job-name=tensorflow'\]"),
        ((403, {"message": "no"}), 0, r"did not list the pods 'job-name=tensorflow' of all namespaces: 403 .* HINT"),
    ],
)
def test_pods_that_do_not_run_are_named(answer: Answer, timeout_s: float, says: str, tmp_path: Path) -> None:
    with serving(lambda request: answer) as server:
        resolver = KubernetesClusterResolver(
            executable_location=OFF_CLUSTER, timeout_s=timeout_s, environ=kubeconfig(tmp_path, server.host)
        )
        with pytest.raises(ClusterError, match=says):
            resolver.cluster_spec()


def test_a_client_of_ones_own_is_asked() -> None:
    with serving(lambda request: pods(pod("a", "10.0.0.1"))) as server:
        api = client.ApiClient(client.Configuration(host=f"http://{server.host}"))
        resolver = KubernetesClusterResolver(override_client=client.CoreV1Api(api))
        assert resolver.cluster_spec() == {"worker": ["10.0.0.1:8470"]}


def test_what_a_client_of_ones_own_raises_is_left_alone() -> None:
    class Broken:
        def list_pod_for_all_namespaces(self, label_selector: str) -> Any:
            raise LookupError(label_selector)

    client_of_mine: Any = Broken()
    with pytest.raises(LookupError, match="job-name=tensorflow"):
        KubernetesClusterResolver(override_client=client_of_mine).cluster_spec()


class TestInAPod:
    def environ(self, index: str = "2", hostname: str = "train-2") -> dict[str, str]:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(port),
            "JOB_COMPLETION_INDEX": index,
            "HOSTNAME": hostname,
        }

    def account(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, text in (("token", "secret"), ("ca.crt", "certificate"), ("namespace", "mine\n")):
            (folder / name).write_text(text)
        monkeypatch.setattr(kubernetes, "_ACCOUNT", folder)

    def test_the_job_is_that_of_the_pod(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.account(tmp_path, monkeypatch)
        found = detect(self.environ())
        assert found is not None
        assert found.why == "JOB_COMPLETION_INDEX is 2 in a pod of the Job 'train'"
        assert (found.resolver.task_type, found.resolver.task_id) == ("worker", 2)
        with pytest.raises(ClusterError, match=r"'job-name=train' of namespace 'mine': "):
            found.resolver.cluster_spec()  # nothing listens there

    def test_a_pod_without_an_account_says_so(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kubernetes, "_ACCOUNT", tmp_path)
        with pytest.raises(ClusterError, match=r"no way .* from WITHIN_CLUSTER: Service token file does not exist"):
            detect(self.environ())

    @pytest.mark.parametrize("hostname", ["", "notebook", "-2"])
    def test_a_host_name_that_does_not_tell_the_job_is_quoted(self, hostname: str) -> None:
        with pytest.raises(ClusterSpecError, match=rf"HOSTNAME is '{hostname}': expected the name of the Job and '-2'"):
            detect(self.environ(hostname=hostname))

    def test_an_index_that_is_none_is_quoted(self) -> None:
        with pytest.raises(ClusterSpecError, match="JOB_COMPLETION_INDEX is 'x'"):
            detect(self.environ(index="x"))


def test_a_kubeconfig_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"from OFF_CLUSTER: .*HINT: in a pod"):
        KubernetesClusterResolver(executable_location=OFF_CLUSTER, environ={"KUBECONFIG": str(tmp_path / "none")})


def test_a_location_that_is_none_is_an_error() -> None:
    wrong: Any = "pod"
    with pytest.raises(ArgumentError, match=r"executable_location is 'pod'.* HINT"):
        KubernetesClusterResolver(executable_location=wrong)


def test_without_the_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(MissingLibraryError, match=r"pip install -e '\.\[kubernetes\]'"):
        KubernetesClusterResolver()
