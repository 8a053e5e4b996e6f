"""`GCEClusterResolver` with Google's client, against a Compute API on loopback; and a machine's own metadata."""

import sys
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from googleapiclient import discovery  # pyright: ignore[reportMissingTypeStubs]

from cluster.fake_http import Answer, Request, serving
from jaxtribute._src.addons.resolvers.gce import metadata
from jaxtribute.cluster_resolver import GCEClusterResolver
from jaxtribute.errors import ClusterError, MissingLibraryError

GROUP = "/compute/v1/projects/p/zones/z/instanceGroups/g/listInstances"
ADDRESSES = {"one": "10.0.0.2", "two": "10.0.0.1", "three": "10.0.0.3"}


def compute(request: Request) -> Answer:
    """A group of three running machines, two on the first page."""
    if request.path == GROUP:
        assert request.body == {"instanceState": "RUNNING"}
        first = "pageToken" not in request.query
        names = ["one", "two"] if first else ["three"]
        items = [{"instance": f"https://compute/projects/p/zones/z/instances/{name}"} for name in names]
        return 200, {"items": items} | ({"nextPageToken": "more"} if first else {})
    name = request.path.rpartition("/")[2]
    return 200, {"name": name, "networkInterfaces": [{"networkIP": ADDRESSES[name]}]}


def service(host: str) -> Any:
    return discovery.build(
        "compute",
        "v1",
        credentials=AnonymousCredentials(),
        client_options={"api_endpoint": f"http://{host}/compute/v1/"},
        cache_discovery=False,
    )


def test_the_running_machines_of_a_group_are_the_tasks() -> None:
    with serving(compute) as server, service(server.host) as api:
        resolver = GCEClusterResolver("p", "z", "g", 2222, "chief", 1, service=api)
        assert resolver.cluster_spec() == {"chief": ["10.0.0.1:2222", "10.0.0.2:2222", "10.0.0.3:2222"]}
        assert resolver.master() == "grpc://10.0.0.2:2222"
        assert resolver.own_task() == ("chief", 1)


def test_a_group_where_nothing_runs_is_an_error() -> None:
    with serving(lambda request: (200, {})) as server, service(server.host) as api:
        resolver = GCEClusterResolver("p", "z", "g", 2222, service=api)
        with pytest.raises(ClusterError, match=r"the instance group 'g' of project 'p' in 'z' has no running machine"):
            resolver.cluster_spec()


def test_the_task_can_be_set_and_the_job_not() -> None:
    resolver = GCEClusterResolver("p", "z", "g", 2222, service=object())
    resolver.task_id, resolver.rpc_layer = 4, "ssl"
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 4, "ssl")
    with pytest.raises(ClusterError, match=r"belong to job 'worker', which cannot become 'ps'\. HINT"):
        resolver.task_type = "ps"


def test_a_service_is_made_with_the_credentials() -> None:
    assert GCEClusterResolver("p", "z", "g", 2222, credentials=AnonymousCredentials()).task_id == 0


def test_without_the_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "googleapiclient", None)
    with pytest.raises(
        MissingLibraryError, match=r"the compute API .*pip install -e '\.\[gce\]' in a clone, or pass service="
    ):
        GCEClusterResolver("p", "z", "g", 2222)


@pytest.mark.parametrize("name", ["GCE_METADATA_HOST", "GCE_METADATA_IP"])
def test_the_server_is_where_the_environment_says(name: str) -> None:
    with serving(lambda request: (200, "p")) as server:
        assert metadata("project/project-id", {name: server.host}) == "p"
    [request] = server.requests
    assert request.path == "/computeMetadata/v1/project/project-id"
    assert request.headers["metadata-flavor"] == "Google"


@pytest.mark.parametrize("status", [404, 500])
def test_no_answer_is_an_error_that_says_what_to_do(status: int) -> None:
    says = rf"did not answer .*project-id: .*{status}.*HINT: outside Google's cloud"
    with serving(lambda request: (status, "no")) as server, pytest.raises(ClusterError, match=says):
        metadata("project/project-id", {"GCE_METADATA_HOST": server.host})
    with pytest.raises(ClusterError, match="refused"):
        metadata("project/project-id", {"GCE_METADATA_HOST": server.host})
