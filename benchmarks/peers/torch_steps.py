"""The same training step by PyTorch: in one process, or by DistributedDataParallel on Gloo in several."""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

from benchmarks.harness import serve
from benchmarks.peers.arguments import Asked, Step, parse, timed
from benchmarks.problems import LEARNING_RATE, MOMENTUM, Problem

torch: Any = importlib.import_module("torch")


class Operations:
    """Of PyTorch."""

    relu, tanh, sqrt, sum = map(staticmethod, (torch.relu, torch.tanh, torch.sqrt, torch.sum))

    def softmax(self, x: Any) -> Any:
        return torch.softmax(x, -1)

    def log_softmax(self, x: Any) -> Any:
        return torch.log_softmax(x, -1)

    def reshape(self, x: Any, shape: Any) -> Any:
        return x.reshape(shape)

    def transpose(self, x: Any, axes: Any) -> Any:
        return x.permute(axes)

    def mean_last(self, x: Any) -> Any:
        return x.mean(-1, keepdim=True)

    def as_float(self, x: Any) -> Any:
        return x.float()

    def pick(self, rows: Any, columns: Any) -> Any:
        return rows.gather(1, columns[:, None])

    def conv(self, x: Any, kernel: Any, stride: int) -> Any:
        out = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1), stride=stride, padding=1)
        return out.permute(0, 2, 3, 1)


OPS: Any = Operations()


class Model(torch.nn.Module):
    """The loss of a problem as a module, so that DistributedDataParallel sees its parameters."""

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(torch.from_numpy(p.copy())) for p in problem.params)
        self._loss = problem.loss

    def forward(self, x: Any, y: Any) -> Any:
        return self._loss(OPS, list(self.weights), x, y)


def step_of(kind: str, problem: Problem, rank: int, ranks: int) -> Step:
    """`torch` or, in several processes, `ddp`."""
    model = Model(problem)
    if kind == "ddp":
        # The gradients are averaged; the loss is scaled so that this is the global mean.
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    x, y = (torch.from_numpy(array.copy()) for array in problem.part(rank, ranks))
    if not y.is_floating_point():
        y = y.long()

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = model(x, y) * (ranks / problem.batch)
        loss.backward()
        optimizer.step()
        return loss

    def value(loss: Any) -> float:
        mean = loss.detach() / ranks
        if ranks > 1:
            torch.distributed.all_reduce(mean)
        return float(mean)

    return timed(step, value)


def all_reduce(problem: Problem, rank: int, ranks: int) -> Step:
    """The sum of a row over the processes."""
    row = torch.from_numpy(problem.part(rank, ranks)[0][0].copy())
    out = torch.empty_like(row)

    def step() -> Any:
        out.copy_(row)  # it sums in place
        torch.distributed.all_reduce(out)
        return out

    return timed(step, lambda out: float(out[0]), 1)


def contenders(asked: Asked) -> dict[str, Step]:
    """The steps that were asked for."""
    rank, ranks = 0, 1
    if "TF_CONFIG" in os.environ:
        task = json.loads(os.environ["TF_CONFIG"])
        workers, rank = task["cluster"]["worker"], task["task"]["index"]
        ranks = len(workers)
        torch.distributed.init_process_group("gloo", init_method=f"tcp://{workers[0]}", rank=rank, world_size=ranks)
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    if "gloo-all-reduce" in asked.contenders:
        return {"gloo-all-reduce": all_reduce(asked.problem, rank, ranks)}
    return {name: step_of(name, asked.problem, rank, ranks) for name in asked.contenders}


if __name__ == "__main__":
    serve(contenders(parse()))
