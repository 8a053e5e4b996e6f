"""Chooses the auto-shard policy of a dataset, and the share of each worker."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtribute._src.core.callers import warn
from jaxtribute._src.core.input.options import AutoShardPolicy, InputOptions
from jaxtribute._src.core.input.sources import Source
from jaxtribute._src.core.input.splitting import Shard
from jaxtribute.errors import InputError


@dataclass(frozen=True, slots=True)
class Sharding:
    """A policy, resolved.

    Attributes:
      requested: the policy asked for.
      policy: the policy that holds: never AUTO.
      reason: why AUTO took it.
      source: what this worker reads.
      kind: `"global"` if all workers go through the same batches, `"local"` if each has its own.
    """

    requested: AutoShardPolicy
    policy: AutoShardPolicy
    reason: str
    source: Source
    kind: str


def resolve(source: Source, options: InputOptions, shard: Shard) -> Sharding:
    """Applies the auto-shard policy to a dataset.

    Raises:
      InputError: if the dataset cannot be sharded as asked.
    """
    chosen = source.policy() if options.auto_shard_policy is None else options.auto_shard_policy
    requested = AutoShardPolicy.AUTO if chosen is None else AutoShardPolicy(chosen)
    if shard.workers == 1:
        # Nothing is to be shared out; the policy is only told, by `explain`.
        policy = AutoShardPolicy.DATA if requested is AutoShardPolicy.AUTO else requested
        return Sharding(requested, policy, "there is one worker", source, "global")
    policy, reason = requested, "it was asked for"
    if requested is AutoShardPolicy.AUTO:
        policy, reason = _automatic(source, shard)
    if policy is AutoShardPolicy.DATA:
        return Sharding(requested, policy, reason, source, "global")
    own = source
    if policy is AutoShardPolicy.FILE:
        _check_files(source, shard)
        own = source.by_file(shard)
    elif policy is AutoShardPolicy.HINT:
        own = source.by_hint(shard)
    return Sharding(requested, policy, reason, own, "local")


def _automatic(source: Source, shard: Shard) -> tuple[AutoShardPolicy, str]:
    files = source.files()
    if len(files) >= shard.workers:
        return AutoShardPolicy.FILE, f"it reads {len(files)} files, at least one for each of {shard.workers} workers"
    if not files and source.finds_files and _is_shardable(source, shard):
        return AutoShardPolicy.FILE, "it reads files"
    if files:
        reason = f"its {len(files)} file(s) do not go round {shard.workers} workers"
    else:
        reason = "it reads no files that can be shared out"
    if source.reads == "all":
        warn(
            f"AutoShardPolicy.AUTO shards this {source.name} by DATA, because {reason}: every worker reads all of it "
            f"and keeps its share. HINT: {source.to_share_files}, or choose AutoShardPolicy.DATA to say that this is "
            "meant."
        )
    elif files:
        warn(
            f"AutoShardPolicy.AUTO shards this {source.name} by DATA, because {reason}. HINT: give at least one file "
            "a worker, or choose AutoShardPolicy.DATA to say that this is meant."
        )
    return AutoShardPolicy.DATA, reason


def _is_shardable(source: Source, shard: Shard) -> bool:
    # Only the library that made it can tell, and only by doing it.
    try:
        source.by_file(shard)
    except InputError:
        return False
    return True


def _check_files(source: Source, shard: Shard) -> None:
    files = source.files()
    if files and len(files) < shard.workers:
        raise InputError(
            f"AutoShardPolicy.FILE: {len(files)} file(s) ({', '.join(files)}) cannot be shared out among "
            f"{shard.workers} workers. HINT: split the data into at least {shard.workers} files, use "
            "AutoShardPolicy.DATA, or start fewer workers."
        )
    if not files:
        source.by_file(shard)  # raises, and says why
