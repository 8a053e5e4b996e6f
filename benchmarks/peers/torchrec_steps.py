"""The model of clicks by TorchRec on Gloo: its table row-wise over the processes, Adagrad in the backward pass."""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

from benchmarks.harness import serve
from benchmarks.peers import clicks
from benchmarks.peers.arguments import Step, timed

torch: Any = importlib.import_module("torch")
torchrec: Any = importlib.import_module("torchrec")
NAMES = [f"f{place}" for place in range(clicks.FEATURES)]
POOLED = "torchrec pooled"
"""Bags of one id, whose sums are exchanged; otherwise rows of all ids. Rows of distinct ids it has on GPUs alone."""


class Model(torch.nn.Module):
    """The loss, of ids as TorchRec has them.

    Args:
      asked: the sizes.
      pooled: whether rows are bags of one id each.
    """

    def __init__(self, asked: clicks.Asked, *, pooled: bool) -> None:
        super().__init__()
        options = {"num_embeddings": asked.rows, "embedding_dim": asked.width, "feature_names": NAMES, "name": "table"}
        meta = torch.device("meta")
        if pooled:
            self.rows = torchrec.EmbeddingBagCollection(tables=[torchrec.EmbeddingBagConfig(**options)], device=meta)
        else:
            self.rows = torchrec.EmbeddingCollection(tables=[torchrec.EmbeddingConfig(**options)], device=meta)
        self._pooled = pooled
        self.dense = torch.nn.Parameter(torch.from_numpy(clicks.first_dense(asked)))

    def forward(self, ids: Any, targets: Any) -> Any:
        found = self.rows(ids)
        rows = found.values() if self._pooled else torch.cat([found[name].values() for name in NAMES], 1)
        return torch.nn.functional.binary_cross_entropy_with_logits(rows @ self.dense, targets)


def distributed(kind: str, asked: clicks.Asked, ranks: int) -> Any:
    """The model over the processes, with the first rows of each."""
    embedding = importlib.import_module("torchrec.distributed.embedding")
    bags = importlib.import_module("torchrec.distributed.embeddingbag")
    plans = importlib.import_module("torchrec.distributed.sharding_plan")
    types = importlib.import_module("torchrec.distributed.types")
    parallel = importlib.import_module("torchrec.distributed.model_parallel")
    fused = importlib.import_module("torch.distributed.optim")

    model = Model(asked, pooled=kind == POOLED)
    options = {"lr": clicks.RATE, "eps": clicks.EPSILON}
    fused._apply_optimizer_in_backward(torch.optim.Adagrad, model.rows.parameters(), options)
    sharder = bags.EmbeddingBagCollectionSharder() if kind == POOLED else embedding.EmbeddingCollectionSharder()
    plan = plans.construct_module_sharding_plan(
        model.rows, {"table": plans.row_wise()}, sharder, local_size=ranks, world_size=ranks, device_type="cpu"
    )
    group = torch.distributed.group.WORLD
    whole = parallel.DistributedModelParallel(
        model,
        types.ShardingEnv.from_process_group(group),
        torch.device("cpu"),
        types.ShardingPlan({"rows": plan}),
        [sharder],
    )
    first = torch.from_numpy(clicks.first_rows(asked))
    for value in whole.state_dict().values():
        if hasattr(value, "local_shards"):
            for shard in value.local_shards():
                start, count = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]
                shard.tensor.copy_(first[start : start + count])
    return whole


def step_of(kind: str, asked: clicks.Asked, rank: int, ranks: int) -> Step:
    """A step of a kind."""
    model = distributed(kind, asked, ranks)
    dense = [value for name, value in model.named_parameters() if "dense" in name]
    optimizer = torch.optim.Adagrad(dense, clicks.RATE, eps=clicks.EPSILON)
    placed: list[Any] = []
    for ids, targets in clicks.batches(asked.rows, rank, ranks):
        lengths = torch.ones(ids.size, dtype=torch.int64)
        values = torch.from_numpy(ids.T.reshape(-1).astype("int64"))
        keyed = torchrec.KeyedJaggedTensor(keys=NAMES, values=values, lengths=lengths)
        placed.append((keyed, torch.from_numpy(targets)))
    turn = iter(range(1 << 62))

    def step() -> Any:
        loss = model(*placed[next(turn) % len(placed)])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    def value(loss: Any) -> float:
        mean = loss.detach() / ranks
        torch.distributed.all_reduce(mean)
        return float(mean)

    return timed(step, value)


def contenders(asked: clicks.Asked) -> dict[str, Step]:
    """The steps that were asked for."""
    task = json.loads(os.environ["TF_CONFIG"])
    workers, rank = task["cluster"]["worker"], task["task"]["index"]
    ranks = len(workers)
    torch.distributed.init_process_group("gloo", init_method=f"tcp://{workers[0]}", rank=rank, world_size=ranks)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    return {name: step_of(name, asked, rank, ranks) for name in asked.contenders}


if __name__ == "__main__":
    serve(contenders(clicks.parse()))
