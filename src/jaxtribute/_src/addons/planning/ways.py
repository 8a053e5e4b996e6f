"""Ways to send less between hosts: sums in a smaller type, and islands that train alone and meet now and then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxtribute._src.addons.planning.cost import StepCost
from jaxtribute._src.addons.planning.prediction import Cluster, Prediction, collective_time
from jaxtribute._src.addons.tools.hlo.exchanges import Collective
from jaxtribute._src.addons.wires.formats import FORMATS

WAITED_SHARE = 0.1
"""Share of a step that hosts wait for each other from which on ways to send less are shown."""
_STEPS = 10, 100
"""Steps between two meetings that are shown."""
_WIRES = "bfloat16", "int8"


@dataclass(frozen=True, slots=True)
class Way:
    """A way to train on several hosts.

    Attributes:
      lines: what to write.
      step: seconds of a step, on average.
      sent: bytes that a host sends in a step, on average.
      busy: share of the time that its link is in use.
      rate: examples a second, on all devices.
    """

    lines: str
    step: float
    sent: float
    busy: float
    rate: float


def ways(cost: StepCost, cluster: Cluster, mine: Prediction) -> list[Way]:
    """The ways that there are, the planned one first; none if hosts hardly wait for each other.

    Args:
      cost: what a step costs.
      cluster: where it runs.
      mine: the step there, as planned.
    """
    sums = [one for one in cost.exchanged() if one.kind == "all-reduce"]
    among = sum(one.times * (collective_time(one, cluster) - _inner(one, cluster)) for one in sums)
    if cluster.hosts == 1 or among < WAITED_SHARE * mine.step:
        return []
    hosts, rate = cluster.hosts, cluster.link.rate * (1 if cluster.link.shared else cluster.devices)
    alone = mine.step - among

    def way(lines: str, step: float, sent: float) -> Way:
        return Way(lines, step, sent, min(sent / rate / step, 1.0), mine.batch / step)

    def found() -> Iterator[Way]:
        sent = sum(one.times * 2 * (hosts - 1) / hosts * one.nbytes for one in sums)
        yield way("as planned", mine.step, sent)
        for name in _WIRES:
            share = FORMATS[name].bytes_per_element / 4
            yield way(f'wire="{name}"', alone + share * among, share * sent)
        if cost.per_replica > 1 or cost.planned_under != "MirroredStrategy":
            return  # an island has all variables whole
        # Each island sends its changes to each other, from one process.
        changes, one_way = (hosts - 1) * float(cost.parameters), cluster.link.rate
        for every in _STEPS:
            for wire, overlap in ((None, 0), ("int8", 0), ("int4", every - 1)):
                sent = changes * (FORMATS[wire].bytes_per_element / 4 if wire else 1)
                waits = max(sent / one_way + 3 * cluster.link.latency - overlap * alone, 0.0)
                lines = f"sync_every={every}" + (f', wire="{wire}"' if wire else "")
                lines += f", overlap_steps={overlap}" if overlap else ""
                yield way(lines, alone + waits / every, sent / every)

    return list(found())


def _inner(one: Collective, cluster: Cluster) -> float:
    return collective_time(one, cluster.with_size(cluster.devices))
