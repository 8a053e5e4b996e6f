"""Members of a cluster: ranks, addresses and the names that messages use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jaxtribute._src.core.cluster.addresses import Address, all_loopback
from jaxtribute._src.core.environment import shown
from jaxtribute.errors import ClusterSpecError


@dataclass(frozen=True)
class Member:
    """One process of the cluster."""

    job: str
    index: int
    address: str

    def __str__(self) -> str:
        return f"{self.job} {self.index} ({self.address})"


@dataclass(frozen=True)
class Roster:
    """The members in the order of their ranks, and which of them this process is.

    Attributes:
      members: the members, by rank.
      rank: the rank of this process.
    """

    JOBS: ClassVar[tuple[str, ...]] = ("chief", "worker")
    """The jobs whose tasks train together, in the order of their ranks; evaluators and parameter servers do not."""
    members: tuple[Member, ...]
    rank: int

    @classmethod
    def of(cls, jobs: Mapping[str, Mapping[int, str] | Sequence[str]], task_type: str, task_id: int) -> Roster:
        """The roster of a cluster spec.

        Args:
          jobs: the addresses of each job, by task.
          task_type: this process's job.
          task_id: its task there.

        Raises:
          ClusterSpecError: the task takes no part in training, or the cluster has no such task.
        """
        members: list[Member] = []
        for job in cls.JOBS:
            tasks = jobs.get(job, ())
            pairs = tasks.items() if isinstance(tasks, Mapping) else enumerate(tasks)
            # By index: every worker must count the same ranks, whatever the order of its own copy of the spec.
            for index, address in sorted(pairs):
                members.append(Member(job, index, address))
        ranks = [rank for rank, one in enumerate(members) if (one.job, one.index) == (task_type, task_id)]
        if not ranks:
            known = shown([str(member) for member in members]) if members else "none"
            raise ClusterSpecError(
                f"this process is {task_type!r} {task_id!r}, which is none of the cluster's training tasks: {known}. "
                "HINT: set the task's type and index in TF_CONFIG, or the resolver's task_type and task_id."
            )
        # Read here, so that a malformed address is an error on every worker and not only on those that call it.
        for member in members:
            try:
                if not Address.parse(member.address).port:
                    raise ClusterSpecError(
                        f"nobody can call {member.address}. HINT: give it a port that is free there."
                    )
            except ClusterSpecError as error:
                raise ClusterSpecError(
                    f"the address of {member.job} {member.index}, in TF_CONFIG or in the resolver: {error}"
                ) from None
        return cls(tuple(members), ranks[0])

    @property
    def own(self) -> Member:
        """This process."""
        return self.members[self.rank]

    @property
    def names(self) -> tuple[str, ...]:
        """The members as messages call them, by rank."""
        return tuple(map(str, self.members))

    @property
    def is_local(self) -> bool:
        """True if every address is on the loopback interface."""
        return all_loopback(member.address for member in self.members)

    @property
    def shares_machine(self) -> bool:
        """True if all addresses are those of one machine. Asks no name server: two names count as two machines."""
        return self.is_local or len({Address.parse(member.address).host for member in self.members}) == 1

    def named(self, ranks: Sequence[int]) -> str:
        """A list of members for a message."""
        return ", ".join(self.names[rank] for rank in ranks)


def rank_of(key: str) -> int:
    """The rank at the end of a key of the coordination service, such as `jaxtribute/watch/pulse/3`."""
    return int(key.rpartition("/")[2])
