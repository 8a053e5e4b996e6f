"""The public module of cluster resolvers."""

import pytest

import jaxtribute as jd
from processes import run_python


def test_names_are_those_of_tensorflow_and_a_few_more() -> None:
    names = {name for name in dir(jd.cluster_resolver) if not name.startswith("_")}
    assert names == set(
        "ClusterResolver Detection GCEClusterResolver KubernetesClusterResolver KubernetesExecutableLocation "
        "SimpleClusterResolver SlurmClusterResolver TFConfigClusterResolver TPUClusterResolver UnionResolver "
        "detect known register".split()
    )


@pytest.mark.slow
def test_no_cloud_library_is_loaded_before_it_is_used() -> None:
    run_python(
        """
        import sys
        import jaxtribute as jd
        assert "jaxtribute.cluster_resolver" not in sys.modules
        jd.cluster_resolver.detect({})
        assert not {"kubernetes", "googleapiclient"} & set(sys.modules)
        """
    )
