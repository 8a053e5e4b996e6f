"""The partitioners, against what TensorFlow 2.21 answers (`partitioners.json`)."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtribute import partitioners
from jaxtribute._src.addons.parameter_servers.partitioners import shard_offsets
from jaxtribute.errors import ArgumentError

RECORDED: list[list[Any]] = json.loads((Path(__file__).parent / "partitioners.json").read_text())


def made(kind: str, arguments: dict[str, int]) -> partitioners.Partitioner:
    return getattr(partitioners, kind)(**arguments)


def test_results_are_those_of_tensorflow_shape_for_shape() -> None:
    compared = 0
    for kind, arguments, shape, dtype, axis, recorded in RECORDED:
        if isinstance(recorded, str) or min(recorded) < 1 or min([*arguments.values(), 1]) < 1:
            continue  # what TensorFlow answers with an error or with no shard at all
        element = jnp.bfloat16 if dtype == "bfloat16" else dtype
        assert made(kind, arguments)(shape, element, axis) == recorded, (kind, arguments, shape, dtype, axis)
        compared += 1
    assert compared > 900


def test_an_empty_axis_is_one_shard() -> None:
    for kind, arguments in [
        ("MaxSizePartitioner", {"max_shard_bytes": 8}),
        ("FixedShardsPartitioner", {"num_shards": 3}),
    ]:
        assert made(kind, arguments)((0, 4), "float32") == [1, 1]


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("FixedShardsPartitioner", {"num_shards": 0}),
        ("MinSizePartitioner", {"min_shard_bytes": 0}),
        ("MinSizePartitioner", {"max_shards": -1}),
        ("MaxSizePartitioner", {"max_shard_bytes": 0}),
        ("MaxSizePartitioner", {"max_shard_bytes": 8, "max_shards": 0}),
        ("MaxSizePartitioner", {"max_shard_bytes": 8, "bytes_per_string": 0}),
    ],
)
def test_arguments_below_one_are_errors(kind: str, arguments: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match=r"is (0|-1)\. HINT"):
        made(kind, arguments)


def test_scalars_have_no_axis_to_split() -> None:
    with pytest.raises(ArgumentError, match=r"shape \(\) has no axis 0"):
        partitioners.FixedShardsPartitioner(2)((), "float32")


@given(length=st.integers(0, 200), shards=st.integers(1, 20))
def test_offsets_cut_an_axis_evenly(length: int, shards: int) -> None:
    offsets = shard_offsets(length, shards)
    sizes = [end - start for start, end in itertools.pairwise(offsets)]
    assert (offsets[0], offsets[-1], len(sizes)) == (0, length, shards)
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(rows=st.integers(1, 5000), width=st.integers(1, 64), limit=st.integers(1, 1 << 16))
def test_no_shard_of_several_rows_is_larger_than_the_limit(rows: int, width: int, limit: int) -> None:
    shards = partitioners.MaxSizePartitioner(limit)((rows, width), "float32")[0]
    assert math.ceil(rows / shards) * width * 4 <= max(limit, width * 4)
