"""From what a step costs and what a cluster can do to seconds, bytes and efficiency."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from jaxtribute._src.addons.planning.cost import StepCost
from jaxtribute._src.addons.planning.kinds import Device, Link
from jaxtribute._src.addons.tools.hlo.exchanges import Collective
from jaxtribute.errors import ArgumentError
from jaxtribute.extending import slice_sizes

COMPUTE, MEMORY = 0.5, 0.7
"""Share that is reached of the rates that makers state, if nothing was measured."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Hosts of equal devices.

    Attributes:
      device: the kind of each.
      hosts: how many hosts.
      devices: how many devices each has.
      link: what the hosts exchange data over.
    """

    device: Device
    hosts: int
    devices: int
    link: Link

    @property
    def size(self) -> int:
        """All devices."""
        return self.hosts * self.devices

    def with_size(self, size: int) -> Cluster:
        """Makes up `size` devices from these hosts: part of one, or several whole ones."""
        # Rounded up: a host that is needed in part is needed.
        devices = min(size, self.devices)
        return Cluster(self.device, -(-size // devices), devices, self.link)


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step on so many devices.

    Attributes:
      devices: how many.
      batch: examples in the global batch.
      rows: examples on the fullest replica, which the others wait for.
      idle: replicas that get no example.
      compute: seconds of computing on the fullest replica.
      collectives: seconds of exchange; nothing of it is taken to be hidden behind computing.
      memory: bytes on the fullest device.
      fits: whether it has them.
      efficiency: examples a second and device, of those that one replica alone would make: of the same global batch,
        or of the same batch a replica where that is kept.
      replicas: how many replicas they make up.
    """

    devices: int
    batch: int
    rows: int
    idle: int
    compute: float
    collectives: float
    memory: float
    fits: bool
    efficiency: float
    replicas: int

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return self.compute + self.collectives

    @property
    def rate(self) -> float:
        """Examples a second, on all devices."""
        return self.batch / self.step

    @property
    def filled(self) -> float:
        """The part of the replicas' places in a step that hold an example; the rest is left over by the division."""
        return self.batch / (self.replicas * self.rows)


Measured = Callable[[int], float]
"""Seconds that one device computes for so many examples, as measured."""


def predict(
    cost: StepCost,
    cluster: Cluster,
    *,
    batch: int | None = None,
    weak: bool = False,
    measured: Measured | None = None,
) -> Prediction:
    """Predicts a step.

    Args:
      cost: what the step costs.
      cluster: where it runs.
      batch: examples in the global batch; by default those of the step that was looked at.
      weak: whether every device gets such a batch, so that the global one grows with their number.
      measured: what computing takes on one device, if that is known better than from its rates.

    Raises:
      ArgumentError: sizes below 1, or devices that make up no whole replicas.
    """
    batch = cost.batch if batch is None else batch
    if batch < 1 or cluster.hosts < 1 or cluster.devices < 1:
        raise ArgumentError(
            f"batch {batch}, {cluster.hosts} hosts, {cluster.devices} devices each. HINT: all must be at least 1."
        )
    replicas, left = divmod(cluster.size, cost.per_replica)
    if left:
        raise ArgumentError(
            f"{cluster.size} devices make up no whole replicas of {cost.per_replica}. HINT: choose hosts and devices "
            f"whose product {cost.per_replica} divides."
        )
    compute_of = measured or (lambda rows: roofline(cost, cluster.device, rows))
    # Efficiency is told against one replica that makes the whole batch, and exchanges nothing with others.
    alone = (compute_of(batch) + _within(cost, cluster, batch)) / batch
    if weak:
        batch *= replicas
    rows = slice_sizes(batch, replicas)[0]
    compute, memory = compute_of(rows), cost.memory_on(replicas, rows)
    exchange = _within(cost, cluster, rows)
    if replicas > 1:
        exchange += sum(one.times * collective_time(one, cluster) for one in cost.exchanged())
    return Prediction(
        devices=cluster.size,
        batch=batch,
        rows=rows,
        idle=slice_sizes(batch, replicas).count(0),
        compute=compute,
        collectives=exchange,
        memory=memory,
        fits=memory <= cluster.device.memory,
        efficiency=alone * batch / (compute + exchange) / replicas,
        replicas=replicas,
    )


def _within(cost: StepCost, cluster: Cluster, rows: int) -> float:
    """Seconds of the exchange among the devices of a replica, which grows with the examples as activations do."""
    each = sum(one.times * collective_time(one, cluster.with_size(cost.per_replica)) for one in cost.within)
    return each * rows * cost.replicas / cost.batch


@dataclass(frozen=True, slots=True)
class Epoch:
    """A pass over the data.

    Attributes:
      steps: how many, the last, smaller one included.
      last: the step of what the batch size leaves over; None if it divides the examples.
      seconds: how long all take.
    """

    steps: int
    last: Prediction | None
    seconds: float


def epoch(cost: StepCost, cluster: Cluster, full: Prediction, examples: int, measured: Measured | None = None) -> Epoch:
    """Predicts a pass over `examples` examples in batches as large as those of `full`."""
    steps, left = divmod(examples, full.batch)
    last = predict(cost, cluster, batch=left, measured=measured) if left else None
    return Epoch(steps + (last is not None), last, steps * full.step + (last.step if last is not None else 0.0))


def roofline(cost: StepCost, device: Device, rows: int) -> float:
    """Seconds of computing by what the device can do: its operations or its memory, whichever takes longer."""
    operations = cost.flops.at(rows) / (COMPUTE * (device.half if cost.half else device.single))
    traffic = cost.traffic.at(rows) / (MEMORY * device.bandwidth)
    return max(operations, traffic) + device.launch


def collective_time(collective: Collective, cluster: Cluster) -> float:
    """Seconds of one collective over all devices: rings within each host, then between the hosts.

    An all-reduce of S bytes sends 2 (n - 1) / n S from each of n devices. Over hosts of d devices it is a reduction
    within each host, then d at once between the hosts of S / d each, then a gathering within each host.
    """
    if cluster.size == 1:
        return 0.0
    nbytes, hosts, devices = float(collective.nbytes), cluster.hosts, cluster.devices
    times = 2.0 if collective.kind == "all-reduce" else 1.0
    if collective.kind == "collective-permute":
        link = cluster.link if hosts > 1 else cluster.device.link
        return nbytes / _rate(link, devices) + link.latency
    # The bytes go around a ring, whatever its length; latencies add up along a tree.
    inner = cluster.device.link
    seconds = times * (devices - 1) / devices * nbytes / inner.rate + times * math.log2(devices) * inner.latency
    if hosts > 1:
        share = nbytes / devices
        seconds += times * (hosts - 1) / hosts * share / _rate(cluster.link, devices)
        seconds += times * math.log2(hosts) * cluster.link.latency
    return seconds


def _rate(link: Link, devices: int) -> float:
    # A shared link is the host's one way out, over which all its devices send at once.
    return link.rate / devices if link.shared else link.rate


def sizes(most: int, each: int) -> list[int]:
    """Numbers of devices up to `most`, doubling: within a host of `each` devices, then whole hosts."""
    found: list[int] = []
    count = 1
    while count <= most:
        found.append(count)
        # The last doubling within a host goes no further than the whole host.
        count = 2 * count if count >= each else min(2 * count, each)
    return found
