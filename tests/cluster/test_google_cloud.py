"""What a machine of Google's cloud says of itself."""

import pytest

from cluster.fake_http import serving
from jaxtribute._src.cluster.google_cloud import metadata
from jaxtribute.errors import ClusterError


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
