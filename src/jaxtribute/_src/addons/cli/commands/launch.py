"""`jaxtribute launch`: a program in several processes that form a cluster."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jaxtribute._src.addons.cli.numbers import whole
from jaxtribute.extending import shown

if TYPE_CHECKING:
    from jaxtribute._src.addons.launcher.options import Options

HELP = "run a program in several processes that form a cluster, on this machine or on several"
WRONG, UNREACHABLE = 2, 70
"""Exit statuses besides those of the program: wrong use; machines that do not find each other."""
_KEY_BYTES = 16
LOGS = Path("jaxtribute-logs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Tells the parser what the command takes."""
    add = parser.add_argument
    add("--workers", type=_count, metavar="N", help="processes on this machine (1)")
    add(
        "--ps",
        type=_count,
        metavar="N",
        help="parameter servers: the program is the chief, which starts them and workers",
    )
    add("--devices-per-worker", type=_count, metavar="N", help="logical CPU devices a process")
    add("--gpus-per-worker", type=_count, metavar="N", help="GPUs a process (all of this machine, divided)")
    add("--split", action="store_true", help=f"show rank 0 alone; the others go to log files ({LOGS}/rank-N.log)")
    add("--quiet", action="store_true", help="say nothing of the launcher's own, except why a rank failed")
    add("--log-dir", type=_folder, metavar="DIR", help="write a log file a rank there")
    add("--grace", type=_seconds, default=3.0, metavar="S", help="seconds from SIGTERM to SIGKILL after a failure (3)")
    add("--save-time", type=_seconds, default=60.0, metavar="S", help="seconds to save in after a preemption (60)")
    add("--run", type=_folder, metavar="DIR", help="record the run there, for `jaxtribute top` and `jaxtribute serve`")
    add(
        "--track",
        action="append",
        metavar="TRACKER",
        help="what jd.summary writes goes there too, such as wandb; a wrong name lists all; may be repeated",
    )
    several = parser.add_argument_group("several machines", "the same command on each, apart from --node-rank")
    several.add_argument("--nodes", type=_count, metavar="N", help="how many machines; Slurm says it by itself")
    several.add_argument("--node-rank", type=whole, metavar="R", help="this machine, from 0 up; Kubernetes says it")
    several.add_argument("--coordinator", metavar="HOST:PORT", help="an address of machine 0 with a free port")
    several.add_argument(
        "--join-timeout",
        type=_seconds,
        default=300.0,
        metavar="S",
        help="seconds to wait for all, also after a loss (300)",
    )
    several.add_argument("--key", type=Path, metavar="FILE", help="a secret by which the launchers know each other")
    on_ray = parser.add_argument_group(
        "a Ray cluster that runs already", "Ray places the workers, in place of machines"
    )
    on_ray.add_argument(
        "--ray", metavar="ADDRESS", help="of the cluster; `auto` on one of its nodes, and in `ray job submit`"
    )
    on_ray.add_argument(
        "--resources",
        action="append",
        default=[],
        type=_resource,
        metavar="NAME=N",
        help="what each worker takes of it, such as CPU=8 (1) or TPU=4; may be repeated",
    )
    again = parser.add_argument_group("failures")
    again.add_argument("--max-restarts", type=whole, default=0, metavar="N", help="start again so often (0)")
    again.add_argument(
        "--max-preemptions",
        type=whole,
        metavar="N",
        help="start again so often after preemptions (100 with --max-restarts, else 0)",
    )
    again.add_argument("--min-workers", type=_count, metavar="M", help="go on with fewer workers, down to M")
    again.add_argument(
        "--elastic", action="store_true", help="start a process that dies again alone, while the others go on"
    )
    again.add_argument(
        "--share-gpus", action="store_true", help="with --elastic: islands may share a GPU, and divide its memory"
    )
    again.add_argument("--min-islands", type=_count, metavar="M", help="with --elastic: end if fewer are left (1)")
    again.add_argument(
        "--spares", type=whole, default=0, metavar="N", help="with --elastic: processes that wait for a place (0)"
    )
    islands = parser.add_argument_group(
        "islands on several machines", "with --elastic, --key and --node-rank; the same command on each machine"
    )
    islands.add_argument(
        "--hosts", type=_hosts, default=(), metavar="HOST,HOST", help="addresses of all machines, by --node-rank"
    )
    islands.add_argument(
        "--port", type=_port, default=20000, metavar="P", help="of the first island of each; more follow (20000)"
    )
    islands.add_argument(
        "--rejoin", action="store_true", help="join the islands of the other machines, which have trained before"
    )
    islands.add_argument(
        "--rejoin-if",
        type=whole,
        default=0,
        metavar="N",
        help="--rejoin unless N is 0, such as a Job's count of failures",
    )
    add("-m", dest="module", action="store_true", help="the program is a module, as in python -m")
    add("program", help="a Python file, or any command")
    # Python counts them as required in its message.
    add("arguments", nargs=argparse.REMAINDER, help="its arguments").required = False
    parser.epilog = (
        "Exit status: that of the first rank that failed; 75 if the job was preempted and may be started again; 70 if "
        "machines or ranks were lost; 130 after Ctrl-C. SIGTERM lets the ranks of this machine save; SIGUSR1 lets all "
        "save and start with all workers."
    )


def run(arguments: argparse.Namespace) -> int:
    """Starts the processes and waits for them."""
    from jaxtribute._src.addons.launcher.launch import become, rank_set_by_slurm, slurm_environment
    from jaxtribute._src.addons.launcher.options import complete
    from jaxtribute._src.addons.launcher.terminal import say
    from jaxtribute.errors import ArgumentError, ConfigError, JaxtributeError, MissingLibraryError

    try:
        options = _options(arguments)
        # srun has started each worker already: this process becomes one, and supervises none.
        _refuse_for_ray(arguments)
        _refuse_for_islands(arguments)
        if arguments.nodes is None and arguments.ray is None and rank_set_by_slurm():
            _refuse_for_slurm(arguments)
            become(options.command, slurm_environment() | dict(options.variables))
        if arguments.hosts:
            return _launched(arguments, replace(options, nodes=len(arguments.hosts), node_rank=arguments.node_rank))
        # Neither Slurm's nor Kubernetes's machines are those of the job.
        nodes = 1 if arguments.ray is not None else arguments.nodes
        complete_options = complete(options, nodes, arguments.node_rank)
        if arguments.elastic and complete_options.nodes > 1:
            raise ArgumentError(
                f"--elastic on {complete_options.nodes} machines, as Slurm says: name the machines of "
                "islands with --hosts. HINT: or give --nodes 1."
            )
        return _launched(arguments, complete_options)
    except JaxtributeError as error:
        say(str(error))
        # What no other try would cure; a folder for --run that cannot be written to is a ConfigError.
        return WRONG if isinstance(error, (ValueError, ConfigError, MissingLibraryError)) else UNREACHABLE
    except OSError as error:  # no more processes, files or memory
        say(f"the job cannot be started here: {error}. HINT: `ulimit -a` shows the limits of this user.")
        return UNREACHABLE


def _launched(arguments: argparse.Namespace, options: Options) -> int:
    from jaxtribute._src.addons.launcher.launch import launch
    from jaxtribute._src.addons.live.job import JobRecorder

    # Machine 0 starts the job and starts it again, so its launcher keeps the record.
    if arguments.run is None or options.node_rank:
        return launch(options)
    recorder = JobRecorder(arguments.run, options.command)
    return recorder.run(lambda: launch(replace(options, told=recorder.note_island)))


def _options(arguments: argparse.Namespace) -> Options:
    from jaxtribute._src.addons.launcher.options import Options

    return Options(
        command=_command(arguments.program, arguments.arguments, module=arguments.module),
        workers=1 if arguments.ps else arguments.workers or 1,
        served=(arguments.ps, arguments.workers or 1) if arguments.ps else None,
        devices=arguments.devices_per_worker,
        gpus=arguments.gpus_per_worker,
        shares_gpus=arguments.share_gpus,
        coordinator=arguments.coordinator,
        join_timeout_s=arguments.join_timeout,
        key=None if arguments.key is None else _read_key(arguments.key),
        max_restarts=arguments.max_restarts,
        max_preemptions=arguments.max_preemptions,
        min_workers=arguments.min_workers,
        min_islands=(arguments.min_islands or 1) if arguments.elastic else None,
        hosts=arguments.hosts,
        port=arguments.port,
        spares=arguments.spares,
        rejoins=arguments.rejoin or arguments.rejoin_if > 0,
        grace_s=arguments.grace,
        save_s=arguments.save_time,
        log_dir=arguments.log_dir or (LOGS if arguments.split else None),
        split=arguments.split,
        quiet=arguments.quiet,
        ray=arguments.ray,
        resources=dict(arguments.resources),
        variables=_variables(arguments.run, arguments.track or ()),
    )


def _variables(run: Path | None, trackers: Sequence[str]) -> dict[str, str]:
    """Environment variables by which the ranks know where to record, and what to track with."""
    from jaxtribute._src.addons.launcher.environment import RUN
    from jaxtribute._src.addons.tracking.choosing import TRACK, check_name

    # Absolute, as a program may change its directory.
    found = {} if run is None else {RUN: str(run.absolute())}
    # A name that is wrong is told before anything starts.
    for name in trackers:
        check_name(name)
    return found | {TRACK: ",".join(trackers)} if trackers else found


def _read_key(path: Path) -> bytes:
    """The secret in a file, without the white space around it."""
    from jaxtribute._src.addons.launcher.terminal import say
    from jaxtribute._src.regular_files import known_to_all, read_secret
    from jaxtribute.errors import ArgumentError

    hint = f"HINT: make it once with `head -c 32 /dev/urandom | base64 > {path}`, and copy it to every machine."
    try:
        # An end of line that an editor adds must not make two keys of one.
        key = read_secret(path).strip()
    except OSError as error:
        raise ArgumentError(f"--key {path} cannot be read: {error}. {hint}") from error
    if (warning := known_to_all(path)) is not None:
        say(f"--key {warning}")
    if len(key) < _KEY_BYTES:
        raise ArgumentError(f"--key {path} holds {len(key)} bytes, and needs {_KEY_BYTES} at least. {hint}")
    return key


def _command(program: str, arguments: list[str], *, module: bool) -> tuple[str, ...]:
    from jaxtribute.errors import ArgumentError

    if module:
        return (sys.executable, "-m", program, *arguments)
    python = program.endswith(".py")
    if not (Path(program).is_file() if python else shutil.which(program)):
        raise ArgumentError(
            f"there is no program {program!r} in {Path.cwd()}{'' if python else ' or on the path'}. "
            "HINT: give a Python file, a command, or -m and a module."
        )
    return (sys.executable, program, *arguments) if python else (program, *arguments)


def _refuse_for_slurm(arguments: argparse.Namespace) -> None:
    from jaxtribute.errors import ArgumentError

    given = {
        "--workers": arguments.workers,
        "--max-restarts": arguments.max_restarts,
        "--max-preemptions": arguments.max_preemptions,
        "--min-workers": arguments.min_workers,
        "--gpus-per-worker": arguments.gpus_per_worker,
        "--split": arguments.split,
        "--elastic": arguments.elastic,
    }
    wrong = [name for name, value in given.items() if value]
    if wrong:
        raise ArgumentError(
            f"srun has started several tasks on a machine, so each of them is one worker, and {', '.join(wrong)} "
            "cannot be done. HINT: start one task a machine (srun --ntasks-per-node=1) and let the launcher start more."
        )


_OF_A_MACHINE = ("--node-rank", "--coordinator", "--key", "--min-workers")
"""Options of a launcher that is one of several, or that starts the whole job again."""


def _given(arguments: argparse.Namespace, *options: str) -> list[str]:
    """Those of the options that the command line has."""
    return [option for option in options if getattr(arguments, option[2:].replace("-", "_")) is not None]


def _is_on(arguments: argparse.Namespace, option: str) -> bool:
    return bool(getattr(arguments, option[2:].replace("-", "_")))


def _refuse_for_ray(arguments: argparse.Namespace) -> None:
    from jaxtribute.errors import ArgumentError

    if arguments.ray is None:
        if arguments.resources:
            raise ArgumentError("--resources without --ray. HINT: name the Ray cluster that has them, --ray auto.")
        return
    wrong = _given(arguments, "--nodes", *_OF_A_MACHINE)
    if wrong:
        raise ArgumentError(
            f"{', '.join(wrong)} with --ray, where Ray says which machines there are. HINT: leave them out; --workers "
            "counts the workers of the whole cluster."
        )


def _refuse_for_islands(arguments: argparse.Namespace) -> None:
    from jaxtribute.errors import ArgumentError

    workers = arguments.workers or 1
    if not arguments.elastic:
        alone = [*_given(arguments, "--min-islands"), *["--hosts"][: len(arguments.hosts)]]
        alone += [name for name in ("--rejoin", "--rejoin-if", "--spares", "--share-gpus") if _is_on(arguments, name)]
        if alone:
            raise ArgumentError(
                f"{', '.join(alone)} without --elastic. HINT: give both; --min-workers and --nodes are "
                "for jobs that start again as a whole."
            )
        return
    several_machines = ["--nodes"] if (arguments.nodes or 1) > 1 else []
    of_a_machine = ("--coordinator", "--min-workers") if arguments.hosts else _OF_A_MACHINE
    wrong = _given(arguments, "--ps", "--ray", *several_machines, *of_a_machine)
    if wrong:
        raise ArgumentError(
            f"--elastic with {', '.join(wrong)}: no island hosts anything for the others. HINT: leave one of the two "
            "out; --hosts names several machines, and --min-islands says how many suffice."
        )
    if arguments.spares and (not arguments.max_restarts or arguments.gpus_per_worker):
        raise ArgumentError(
            f"--spares {arguments.spares} with --max-restarts {arguments.max_restarts} and --gpus-per-worker "
            f"{arguments.gpus_per_worker}. HINT: spares take the places of islands that are started again, with "
            "--max-restarts, and none has GPUs before it has a place."
        )
    if arguments.hosts:
        _check_hosts(arguments)
    elif arguments.rejoin or arguments.rejoin_if:
        raise ArgumentError("--rejoin without --hosts. HINT: on one machine the launcher starts islands again itself.")
    if (arguments.min_islands or 1) > workers:
        raise ArgumentError(
            f"--min-islands {arguments.min_islands} is more than the {workers} worker(s) that start. HINT: give "
            "--workers as many at least."
        )


def _check_hosts(arguments: argparse.Namespace) -> None:
    from jaxtribute.errors import ArgumentError

    hosts, rank = arguments.hosts, arguments.node_rank
    if rank is None or rank >= len(hosts):
        raise ArgumentError(
            f"--node-rank is {rank}, and --hosts names {len(hosts)} machines. HINT: give 0 on {hosts[0]}, and so on."
        )
    if len(set(hosts)) < len(hosts):
        raise ArgumentError(f"--hosts {','.join(hosts)} names a machine twice. HINT: start more --workers there.")
    if arguments.key is None:
        raise ArgumentError(
            "--hosts without --key: islands on several machines encrypt. HINT: make a file once with `head -c 32 "
            "/dev/urandom | base64`, and copy it to every machine."
        )
    if arguments.min_islands is not None:
        raise ArgumentError(
            f"--min-islands {arguments.min_islands} with --hosts, of which each launcher knows its own islands alone. "
            "HINT: pass min_islands= to ElasticStrategy."
        )


def _hosts(text: str) -> tuple[str, ...]:
    hosts = tuple(text.split(","))
    if not all(hosts):
        raise argparse.ArgumentTypeError(f"{shown(text)} is no list of hosts, such as 10.0.0.1,10.0.0.2")
    return hosts


def _resource(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    if not name or not amount:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no NAME=N, such as CPU=8")
    return name, _amount(amount)


def _count(text: str) -> int:
    number = whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _port(text: str) -> int:
    number = _count(text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port from 1 to 65535")
    return number


def _folder(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("an empty text names no folder; '.' is the current one")
    return Path(text)


def _seconds(text: str) -> float:
    return _amount(text, " of seconds")


def _amount(text: str, of: str = "") -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    # NaN is neither less nor more than anything; an infinite time is one that never comes.
    if not 0 <= amount < math.inf:
        raise argparse.ArgumentTypeError(f"{shown(text)} is no number{of} from 0 on")
    return amount
