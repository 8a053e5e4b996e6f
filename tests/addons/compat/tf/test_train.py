"""`tf.train` and what is below `tf.distribute` of clusters."""

import pytest

import jaxtribute as jd
import jaxtribute.compat.tf as tf
from jaxtribute.compat import v1


def test_clusters_are_those_of_the_library() -> None:
    spec = tf.train.ClusterSpec({"worker": ["a:1"]})
    assert isinstance(spec, jd.ClusterSpec)
    assert tf.train.ClusterDef((tf.train.JobDef("worker", {0: "a:1"}),)) == spec.as_cluster_def()
    assert tf.distribute.cluster_resolver is v1.cluster_resolver is jd.cluster_resolver
    assert tf.distribute.Server is v1.Server is jd.Server
    assert isinstance(jd.Server(spec, start=False).server_def, tf.train.ServerDef)


def test_what_is_not_there_says_what_to_write() -> None:
    with pytest.raises(AttributeError, match=r"no 'SequenceExample'\. HINT: store arrays"):
        _ = tf.train.SequenceExample
