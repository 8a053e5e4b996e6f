"""A step of the Slurm workload manager, and the two short forms in which Slurm writes lists."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Generator, Mapping, MutableMapping
from typing import Any

from jaxtribute import ClusterSpec
from jaxtribute.cluster_resolver import ClusterResolver, Detection, register
from jaxtribute.errors import ClusterSpecError
from jaxtribute.extending import settings, shown, visible_gpus

RANK, TASKS, HOSTS = "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"
COUNTS = "SLURM_STEP_TASKS_PER_NODE"
_NODE = "SLURMD_NODENAME"
# Other variables of Slurm may hold secrets, such as SLURM_JWT.
_SHOWN = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_")
# Remembers what the node had, so that a second resolver does not share out one task's share again.
_ALL_GPUS = "JAXTRIBUTE_SLURM_GPUS"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_DIGITS = 18
"""Of a number that counts anything; Python refuses to read very long ones."""


@register(rank=20)
class SlurmClusterResolver(ClusterResolver):
    """The cluster of a Slurm step (`srun`): one task a process, each at its node's name and a port of its own.

    Tasks are counted as Slurm counts them with block distribution: node by node, in the order of the node list.
    (TensorFlow sorts the nodes' names, and so gives `n2` and `n10` each other's ranks.)

    Args:
      jobs: the number of tasks of each job; the jobs get Slurm's ranks in the order of their names. All tasks are
        `worker`s by default.
      port_base: the port of a node's first task; the next ones follow.
      gpus_per_node: the GPUs of each node to share out; those that this process sees by default.
      gpus_per_task: the GPUs of each task; by default a node's, shared out evenly. 0 leaves GPUs alone.
      tasks_per_node: the tasks of each node, or of each node by name, in place of Slurm's own.
      auto_set_gpu: whether `cluster_spec` sets `CUDA_VISIBLE_DEVICES` to this task's GPUs.
      rpc_layer: the protocol before the address that `master` returns.
      environ: the environment to read; this process's own by default.

    Raises:
      ClusterSpecError: this is no Slurm step, its variables are incomplete or contradict each other, or `jobs` asks for
        more or fewer tasks, or for more GPUs, than there are.

    Source: `tf.distribute.cluster_resolver.SlurmClusterResolver`.
    """

    looks_for = "SLURM_STEP_NODELIST and its like, which srun sets"

    def __init__(
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int = 8888,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: int | Mapping[str, int] | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str = "grpc",
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(rpc_layer=rpc_layer, environ=environ)
        self._check_present(jobs is None, tasks_per_node)
        self._rank = self._integer(self.environ, RANK)
        self._nodes = self._tasks_by_node(tasks_per_node)
        counts = self._counts_of("jobs", jobs)
        # By their names, as TensorFlow sorts them: every task must count the same ranks.
        self._jobs = dict(sorted((counts or {"worker": self._integer(self.environ, TASKS)}).items()))
        self._check_counts()
        # Node by node, as srun gives tasks out by default.
        self._places = _numbered(self._nodes)
        self._check_places()
        self._gpus = _node_gpus(self.environ, settings.whole("gpus_per_node", gpus_per_node, optional=True))
        self._gpus_per_task = self._share_gpus(settings.whole("gpus_per_task", gpus_per_task, optional=True))
        self._port_base = settings.port("port_base", port_base)
        self._auto_set_gpu = settings.flag("auto_set_gpu", auto_set_gpu)
        self._task_type, self._task_id = self._own_place()

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> Detection | None:
        """Finds a step: `salloc` and `sbatch` alone set none of a step's variables."""
        seen = [name for name in (TASKS, HOSTS, COUNTS) if name in environ]
        return Detection(cls(environ=environ), f"{seen[0]} is {environ[seen[0]]}") if seen else None

    def cluster_spec(self) -> ClusterSpec:
        """The cluster of the step; sets `CUDA_VISIBLE_DEVICES` to this task's GPUs unless `auto_set_gpu` is false."""
        if self._auto_set_gpu:
            self._set_gpus()
        addresses = [f"{node}:{self._port_base + local}" for node, local in self._places]
        jobs: dict[str, list[str]] = {}
        for job, count in self._jobs.items():
            jobs[job], addresses = addresses[:count], addresses[count:]
        return ClusterSpec(jobs)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> dict[str, int]:
        return {"GPU": self._gpus_per_task}

    def get_task_info(self) -> tuple[str | None, int | None]:
        """This process's job and its index there; TensorFlow knows them only after `cluster_spec`."""
        return self.task_type, self.task_id

    def _check_present(self, needs_total: bool, tasks_per_node: int | Mapping[str, int] | None) -> None:
        needed = [RANK]
        needed += [TASKS] if needs_total else []
        needed += [HOSTS] if not isinstance(tasks_per_node, Mapping) else []
        needed += [COUNTS] if tasks_per_node is None else []
        missing = [name for name in needed if not self.environ.get(name)]
        if missing:
            seen = [f"{name}={value}" for name, value in sorted(self.environ.items()) if name.startswith(_SHOWN)]
            raise ClusterSpecError(
                f"a Slurm step sets {', '.join(needed)}, and {', '.join(missing)} is missing here; there is "
                f"{', '.join(seen) or 'no step, and no job'}. HINT: start the program with srun (salloc and sbatch "
                "alone make no step), and let a container pass on all SLURM_ variables."
            )

    def _tasks_by_node(self, tasks_per_node: int | Mapping[str, int] | None) -> dict[str, int]:
        if isinstance(tasks_per_node, Mapping):
            return self._counts_of("tasks_per_node", tasks_per_node)
        nodes = expand_hosts(self.environ[HOSTS])
        if tasks_per_node is not None:
            return dict.fromkeys(nodes, settings.whole("tasks_per_node", tasks_per_node))
        counts = expand_counts(self.environ[COUNTS])
        if len(counts) != len(nodes):
            raise ClusterSpecError(
                f"{HOSTS}={shown(self.environ[HOSTS])} has {len(nodes)} nodes, {COUNTS}={shown(self.environ[COUNTS])} "
                f"counts the tasks of {len(counts)}. HINT: let nothing but srun set them."
            )
        return dict(zip(nodes, counts, strict=True))

    def _check_counts(self) -> None:
        asked, assigned = sum(self._jobs.values()), sum(self._nodes.values())
        if asked != assigned:
            raise ClusterSpecError(
                f"the jobs {self._jobs} have {asked} tasks, and Slurm runs {assigned} by {HOSTS} and {COUNTS}: "
                f"{shown(self._nodes)}. "
                f"HINT: start with srun --ntasks={asked}, or change jobs."
            )

    def _check_places(self) -> None:
        assigned = len(self._places)
        if self._rank >= assigned:
            raise ClusterSpecError(
                f"{RANK} is {self._rank}: expected 0 to {assigned - 1}, because {shown(self._nodes)} has {assigned} "
                "tasks. HINT: let nothing but srun set it."
            )
        # With another distribution (srun --distribution=cyclic) the tasks count otherwise than the nodes do: this one
        # would then listen at an address that the others look for on another machine.
        expected, here = self._places[self._rank][0], self.environ.get(_NODE)
        if here in self._nodes and here != expected:
            raise ClusterSpecError(
                f"rank {self._rank} runs on {here!r} ({_NODE}), and would run on {expected!r} if the tasks "
                f"{shown(self._nodes)} were given out node by node. HINT: start with srun --distribution=block."
            )

    def _share_gpus(self, per_task: int | None) -> int:
        # By the node with most tasks, so that each task of the cluster gets as many GPUs.
        most, available = max(self._nodes.values(), default=0), len(self._gpus)
        if per_task is None:
            per_task = available // most if most else 0
            if available and not per_task:
                raise ClusterSpecError(
                    f"a node has {available} GPUs for {most} tasks ({COUNTS}, {_VISIBLE}). HINT: start at most "
                    f"{available} tasks a node, or pass gpus_per_task=0 to leave GPUs alone."
                )
        if most * per_task > available:
            raise ClusterSpecError(
                f"{most} tasks of a node with {per_task} GPUs each need more than the {available} that it has. "
                "HINT: pass a smaller gpus_per_task, or start fewer tasks on a node."
            )
        return per_task

    def _own_place(self) -> tuple[str, int]:
        return _numbered(self._jobs)[self._rank]

    def _set_gpus(self) -> None:
        # A mapping that was passed may be read-only: then it tells, and nothing is set.
        if not self._gpus_per_task or not isinstance(self.environ, MutableMapping):
            return
        # By the task's place on its node: all tasks of a node see the same GPUs, and each takes others.
        first = self._places[self._rank][1] * self._gpus_per_task
        self.environ[_ALL_GPUS] = ",".join(self._gpus)
        self.environ[_VISIBLE] = ",".join(self._gpus[first : first + self._gpus_per_task])


def _numbered(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Each name as often as it counts, with numbers from 0."""
    found: list[tuple[str, int]] = []
    for name, count in counts.items():
        found += zip(itertools.repeat(name), range(count))
    return found


def _node_gpus(environ: Mapping[str, str], count: int | None) -> list[str]:
    remembered = environ.get(_ALL_GPUS)
    ids = remembered.split(",") if remembered else visible_gpus(environ)
    if count is None or count <= len(ids):
        return ids[:count]
    return list(map(str, range(count)))


_GROUP = re.compile(r"\[([^\[\]]*)\]")
_ENTRY = re.compile(r"(?:[^,\s\[\]]|\[[^\[\]]*\])+")
_LIST = re.compile(rf"{_ENTRY.pattern}(?:,{_ENTRY.pattern})*")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?", re.ASCII)


_MOST = 1 << 17
"""Hosts or tasks that a list may have; the largest machines have a tenth of that."""


def expand_hosts(text: str) -> list[str]:
    """The hosts of a list such as `n[01-03,7],login,rack[0-1]n[1-2]`, in its order and with its repetitions.

    A range keeps the leading zeros of its first number.

    Raises:
      ClusterSpecError: the list is malformed, or has more hosts than any machine.
    """
    if not _LIST.fullmatch(text):
        raise _malformed_hosts(text, "as a whole")
    # Counted before anything is made: a few letters can stand for more hosts than the memory holds.
    count = 0
    for entry in _ENTRY.findall(text):
        count += math.prod(_count_ranges(text, piece) for piece in _GROUP.split(entry)[1::2])
    if count > _MOST:
        raise _malformed_hosts(text, f"with its {count} hosts, of which {_MOST} are expected at most")
    hosts: list[str] = []
    for entry in _ENTRY.findall(text):
        hosts += _expand_entry(text, entry)
    return hosts


def _expand_entry(text: str, entry: str) -> list[str]:
    pieces: list[list[str]] = []
    for number, piece in enumerate(_GROUP.split(entry)):
        # Every second piece is what stood in brackets.
        pieces.append(_expand_ranges(text, piece) if number % 2 else [piece])
    return list(map("".join, itertools.product(*pieces)))


def _expand_ranges(text: str, ranges: str) -> list[str]:
    numbers: list[str] = []
    for first, last in _ranges(text, ranges):
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers


def _count_ranges(text: str, ranges: str) -> int:
    return sum(int(last) - int(first) + 1 for first, last in _ranges(text, ranges))


def _ranges(text: str, ranges: str) -> Generator[tuple[str, str]]:
    for part in ranges.split(","):
        found = _RANGE.fullmatch(part)
        if found is None or max(map(len, part.split("-"))) > _DIGITS or int(found[2] or found[1]) < int(found[1]):
            raise _malformed_hosts(text, f"at {shown(part)}, which is no number and no range of rising numbers")
        yield found[1], found[2] or found[1]


def _malformed_hosts(text: str, where: str) -> ClusterSpecError:
    return ClusterSpecError(
        f"{HOSTS} is {shown(text)}, which is no list of Slurm's hosts {where}. HINT: expected names and ranges, "
        "such as 'n[01-03,7],login'."
    )


def expand_counts(text: str) -> list[int]:
    """The tasks of each node from a list such as `3(x2),2,1`, which is 3, 3, 2, 1.

    Raises:
      ClusterSpecError: the list is malformed.
    """
    counts: list[int] = []
    total = 0
    for part in text.split(","):
        found = _COUNT.fullmatch(part)
        if found is None:
            raise ClusterSpecError(
                f"{COUNTS} is {shown(text)}, which is no list of Slurm's tasks per node at {shown(part)}. HINT: "
                "expected counts and repetitions, such as '3(x2),2,1'."
            )
        # A number that is too long to be read counts too many in any case.
        too_long = max(len(found[1]), len(found[2] or "")) > _DIGITS
        tasks, more = (_MOST, 2) if too_long else (int(found[1]), int(found[2] or 1))
        total += max(tasks, 1) * more
        if total > _MOST:
            raise ClusterSpecError(
                f"{COUNTS} is {shown(text)}, and counts more than {_MOST} tasks. HINT: let nothing but srun set it."
            )
        counts += [tasks] * more
    return counts
