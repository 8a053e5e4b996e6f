"""`TPUClusterResolver`: what the environment and the Cloud TPU API say of a TPU."""

from types import SimpleNamespace
from typing import Any

import jax
import pytest
from google.auth.credentials import AnonymousCredentials
from googleapiclient import discovery  # pyright: ignore[reportMissingTypeStubs]

from cluster.fake_http import Answer, Request, serving
from jaxtribute.cluster_resolver import TPUClusterResolver
from jaxtribute.errors import ArgumentError, ClusterError, ClusterSpecError

NODE = {"state": "READY", "networkEndpoints": [{"ipAddress": "10.0.0.1", "port": 8470}]}


@pytest.mark.parametrize(
    ("environ", "hosts"),
    [
        ({"TPU_WORKER_HOSTNAMES": "h0, h1:9000"}, ["h0:8470", "h1:9000"]),
        ({"TPU_PROCESS_ADDRESSES": "h0:1,h1:2", "TPU_WORKER_HOSTNAMES": "h2"}, ["h0:1", "h1:2"]),
        ({"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://10.0.0.1:1,grpc://10.0.0.2"}, ["10.0.0.1:1", "10.0.0.2:8470"]),
        ({"TPU_NAME": "grpc://10.0.0.1:1"}, ["10.0.0.1:1"]),
    ],
)
def test_the_environment_names_the_hosts(environ: dict[str, str], hosts: list[str]) -> None:
    resolver = TPUClusterResolver(environ=environ | {"TPU_WORKER_ID": "0"})
    assert resolver.cluster_spec() == {"worker": hosts}
    assert resolver.own_task() == ("worker", 0)
    assert resolver.get_master() == resolver.master(rpc_layer="ssl") == f"grpc://{hosts[0]}"


def test_each_host_is_its_own_task() -> None:
    resolver = TPUClusterResolver(environ={"TPU_WORKER_HOSTNAMES": "h0,h1", "TPU_WORKER_ID": "1"}, job_name="tpu")
    assert resolver.own_task() == ("tpu", 1)
    assert resolver.master() == "grpc://h1:8470"
    assert resolver.get_job_name() == "tpu"
    assert resolver.get_coordination_service_leader() == "/job:tpu/task:0"


def test_a_local_tpu_is_no_cluster() -> None:
    resolver = TPUClusterResolver("local", environ={"TPU_NAME": "other"})
    assert not resolver.cluster_spec()
    assert resolver.master() == ""


def test_a_coordinator_is_a_job_of_the_cluster() -> None:
    resolver = TPUClusterResolver(["grpc://h0:1"], coordinator_name="c", coordinator_address="h9:1", environ={})
    assert resolver.cluster_spec() == {"worker": ["h0:1"], "c": ["h9:1"]}
    with pytest.raises(ArgumentError, match=r"the coordinator 'c' has no address\. HINT"):
        TPUClusterResolver("grpc://h0:1", coordinator_name="c", environ={})


def test_one_tpu_has_to_be_named() -> None:
    with pytest.raises(ClusterSpecError, match=r"no TPU is named: tpu is None, and .* TPU_NAME and TPU_CONFIG\. HINT"):
        TPUClusterResolver(environ={})
    with pytest.raises(ArgumentError, match=r"tpu is \['a', 'b'\]\. HINT: name one TPU"):
        TPUClusterResolver(["a", "b"], environ={})
    with pytest.raises(ClusterSpecError, match=r"TPU_CONFIG is 'x': .*HINT: expected a JSON object"):
        TPUClusterResolver(environ={"TPU_CONFIG": "x"})


class TestByName:
    def ask(self, answer: Answer, environ: dict[str, str], **more: Any) -> tuple[Any, list[str]]:
        """What the resolver says of a TPU with a name, and the paths that it asked for."""

        def both(request: Request) -> Answer:
            told = {
                "/computeMetadata/v1/project/project-id": (200, "p"),
                "/computeMetadata/v1/instance/zone": (200, "projects/1/zones/z"),
            }
            return told.get(request.path, answer)

        with serving(both) as server:
            options = {"api_endpoint": f"http://{server.host}/"}
            with discovery.build(
                "tpu", "v1", credentials=AnonymousCredentials(), client_options=options, cache_discovery=False
            ) as service:
                metadata = {"GCE_METADATA_HOST": server.host}
                resolver = TPUClusterResolver(service=service, environ=environ | metadata, **more)
                spec = resolver.cluster_spec()
        return spec, [request.path for request in server.requests]

    def test_the_machine_says_where_it_is(self) -> None:
        spec, paths = self.ask((200, NODE), {"TPU_NAME": "t"})
        assert spec == {"worker": ["10.0.0.1:8470"]}
        assert paths[-1] == "/v1/projects/p/locations/z/nodes/t"
        assert len(paths) == 3

    def test_what_is_said_need_not_be_asked(self) -> None:
        old = {"state": "READY", "ipAddress": "10.0.0.7", "port": "1"}
        spec, paths = self.ask((200, old), {}, tpu="t", project="q", zone="y")
        assert spec == {"worker": ["10.0.0.7:1"]}
        assert paths == ["/v1/projects/q/locations/y/nodes/t"]

    def test_an_old_configuration_says_all(self) -> None:
        config = '{"tpu_node_name": "t", "project": "q", "zone": "y"}'
        assert self.ask((200, NODE), {"TPU_CONFIG": config})[1] == ["/v1/projects/q/locations/y/nodes/t"]

    def test_a_tpu_that_is_not_ready_says_its_state(self) -> None:
        with pytest.raises(ClusterError, match=r"TPU 't' is not ready; its state is 'CREATING'\. HINT"):
            self.ask((200, {"state": "CREATING"}), {"TPU_NAME": "t"})

    def test_a_tpu_that_is_not_known_is_named(self) -> None:
        with pytest.raises(ClusterError, match=r"does not know 'projects/p/locations/z/nodes/t': .*404"):
            self.ask((404, {}), {"TPU_NAME": "t"})


def test_nothing_is_connected_where_a_resolver_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_NAME", "grpc://h0:1")
    assert TPUClusterResolver.connect().cluster_spec() == {"worker": ["h0:1"]}


def test_devices_are_counted_by_host(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [
        SimpleNamespace(platform="tpu", process_index=host, coords=(host, core, 0))
        for host in (0, 1)
        for core in (0, 1)
    ]
    resolver = TPUClusterResolver("local", environ={})
    assert resolver.get_tpu_system_metadata().num_cores == sum(device.platform == "tpu" for device in jax.devices())
    monkeypatch.setattr(jax, "devices", lambda: devices)
    monkeypatch.setattr(jax, "local_devices", lambda: devices[:2])
    found = resolver.get_tpu_system_metadata()
    assert (found.num_cores, found.num_hosts, found.num_of_cores_per_host) == (4, 2, 2)
    assert found.topology == (2, 2, 1)
    assert resolver.num_accelerators() == {"TPU": 2}
    resolver.set_tpu_topology(b"")
    assert resolver.tpu_hardware_feature is None
