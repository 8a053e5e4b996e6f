import jax
import jax.numpy as jnp
import numpy as np

import jaxtribute as jd
from jaxtribute._src.core.execution.nests import flatten, is_array, is_distributed, map_leaves
from replicas import mirrored, per_replica


def test_is_array() -> None:
    seen: list[bool] = []
    jax.jit(lambda x: seen.append(is_array(x)) or x)(1.0)
    assert seen == [True]
    assert is_array(jnp.ones(1))
    assert is_array(np.ones(1))
    assert is_array(np.float32(1))
    for other in (1, 1.0, True, "a", None, [jnp.ones(1)], jd.Variable(1.0), mirrored(2).place(1.0)):
        assert not is_array(other)


def test_distributed_values_are_leaves() -> None:
    strategy = mirrored(2)
    each, same = per_replica(strategy, [1, 2]), strategy.place(1.0)
    assert is_distributed(each)
    assert is_distributed(same)
    assert not is_distributed(jnp.ones(2))
    leaves, tree = flatten({"a": [each, 1], "b": (same, None)})
    assert leaves[0] is each
    assert leaves[1] == 1
    assert leaves[2] is same
    assert tree.unflatten([1, 2, 3]) == {"a": [1, 2], "b": (3, None)}


def test_map_leaves() -> None:
    strategy = mirrored(2)
    nest = {"a": per_replica(strategy, [1, 2]), "b": [3]}
    assert map_leaves(lambda x: type(x).__name__, nest) == {"a": "PerReplica", "b": ["int"]}
    assert map_leaves(lambda x, y: (x, y), [1], [2]) == [(1, 2)]
