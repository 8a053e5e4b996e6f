"""`tf.data.Options` and `tf.data.experimental`."""

from __future__ import annotations

from typing import Any

from jaxtribute._src.input.options import AutoShardPolicy


class DistributeOptions:
    """Division of a dataset among workers. Source: `tf.data.experimental.DistributeOptions`."""

    def __init__(self) -> None:
        self.auto_shard_policy = AutoShardPolicy.AUTO
        self.num_devices: int | None = None


class Options:
    """Options of a dataset. All attributes are accepted; only `experimental_distribute` has a meaning here.

    Source: `tf.data.Options`.
    """

    def __init__(self) -> None:
        self.experimental_distribute = DistributeOptions()
        self.threading: Any = _Anything()
        self.experimental_optimization: Any = _Anything()
        self.deterministic: bool | None = None


class _Anything:
    """Takes any attribute."""
