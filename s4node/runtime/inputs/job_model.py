"""The tasks of an app: which there are, and what each reads. Pure.

Rules
- Every container computes the same model from the same inputs.
- By partition there are as many tasks as ``s4.cluster.partitions``, or as the largest input has
  partitions; task n is "Partition n", and has no inputs of its own where no input has a
  partition n.
- A job that goes on keeps its number of tasks where an input with a key gets more partitions: task
  n reads partition n as before, and the new ones are shared out. Events go to the task of their
  key, whatever partition they come from.
- Other groupers make one task of each group. They are refused where something finds its task by
  partition number: keys (a key belongs to one of the partitions), streams inside the app (which
  have one partition a task), and live inputs (producers choose among the partitions).
- What progress depends on are the job's facts: where they change, what was kept under a task's
  name would not fit what the task is given.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError
from s4node.events.keys import KEY_GROUPS
from s4node.offsets.checkpoint import JobGuard
from s4node.offsets.system import SystemStreamPartition
from s4node.runtime.inputs.broadcast import partitions_of
from s4node.runtime.inputs.grouper import BY_PARTITION, grouped

StreamName = tuple[str, str]
"""A system's name and a stream's."""


@dataclass(frozen=True, slots=True)
class TaskModel:
    """One task: ``index`` is its partition number in the app, ``name`` what its progress is under.

    ``broadcast`` are those of its ``ssps`` that every other task reads, too.
    """

    index: int
    name: str
    ssps: tuple[SystemStreamPartition, ...] = ()
    broadcast: frozenset[SystemStreamPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What the progress of an app depends on.

    ``counts`` are the partitions of the inputs by ``system.stream``, but for those of which only
    broadcast partitions are read. The streams ``rerouted`` may get more partitions, for their
    events go to the task of their key whatever partition they come from. Any other change moves
    keys to other tasks than have their state. ``grown`` is how many partitions those had at first
    that have got more.
    """

    tasks: int
    grouper: str
    counts: Mapping[str, int] = field(default_factory=dict)
    rerouted: frozenset[str] = frozenset()
    grown: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobModel:
    """All tasks of an app, in order."""

    tasks: tuple[TaskModel, ...]
    facts: JobFacts


@dataclass(frozen=True, slots=True)
class AppKind:
    """What an app has that finds its task by partition number.

    ``keyed`` are its streams whose events go to the task of their key, ``internal`` those inside
    the app, ``live`` those that producers send to.
    """

    keyed: Collection[str] = ()
    internal: Collection[str] = ()
    live: Collection[str] = ()


def model_of(
    config: Config,
    kind: AppKind,
    inputs: Collection[StreamName],
    counts: Mapping[StreamName, int],
    before: JobGuard | None = None,
) -> JobModel:
    """The model of an app that reads the replayable streams ``inputs``.

    ``counts`` has the number of partitions of these and of the broadcast streams; ``before`` is
    what the job was like that it goes on from. Raises
    ConfigError with what is wrong with the settings.
    """
    broadcast = partitions_of(config[settings.BROADCAST_INPUTS], counts)
    own = frozenset(
        SystemStreamPartition(system, stream, number)
        for system, stream in inputs
        for number in range(counts[system, stream])
    ).difference(broadcast)
    grouper = config[settings.GROUPER]
    if grouper == BY_PARTITION:
        had = before.tasks if before is not None and before.grouper == grouper else 0
        groups = _by_partition(config[settings.CLUSTER_PARTITIONS], own, kind.keyed, had)
    else:
        _check_kind(grouper, kind)
        groups = grouped(grouper, own)
        if not groups:
            raise ConfigError(
                f"{settings.GROUPER.name} = {grouper} makes no task, for the app has no input but "
                f"broadcast ones; give it another input, or group {BY_PARTITION}"
            )
    if len(groups) > KEY_GROUPS:
        raise ConfigError(
            f"the inputs make {len(groups)} tasks, and an app has at most {KEY_GROUPS}; read fewer "
            f"partitions, or write a grouper that puts several in one task"
        )
    check_containers(config[settings.CONTAINER_COUNT], len(groups))
    tasks = tuple(
        TaskModel(index, name, tuple(sorted({*ssps, *broadcast})), frozenset(broadcast))
        for index, (name, ssps) in enumerate(groups.items())
    )
    read = sorted({(ssp.system, ssp.stream) for ssp in own})
    partitions = {f"{system}.{stream}": counts[system, stream] for system, stream in read}
    facts = JobFacts(
        len(tasks),
        grouper,
        partitions,
        frozenset(f"{system}.{stream}" for system, stream in read if stream in kind.keyed),
        before.grown_to(partitions) if before is not None else {},
    )
    return JobModel(tasks, facts)


def _by_partition(
    least: int, ssps: Collection[SystemStreamPartition], keyed: Collection[str], had: int
) -> Mapping[str, Sequence[SystemStreamPartition]]:
    """The groups by partition; numbers that no input has are tasks as well, so that task n has
    partition n. A job that ``had`` so many tasks gets no more for ``keyed`` inputs."""
    added = {ssp for ssp in ssps if had and ssp.stream in keyed and ssp.partition >= had}
    first = [ssp for ssp in ssps if ssp not in added]
    groups = {name: list(members) for name, members in grouped(BY_PARTITION, first).items()}
    tasks = max([least, had if added else 0, *(ssp.partition + 1 for ssp in first)])
    names = [f"Partition {number}" for number in range(tasks)]
    for ssp in added:
        groups.setdefault(names[ssp.partition % had], []).append(ssp)
    return {name: tuple(sorted(groups.get(name, ()))) for name in names}


def _check_kind(grouper: str, kind: AppKind) -> None:
    reasons = (
        ("keyed streams", kind.keyed, "a key belongs to a partition number"),
        ("streams of its own", kind.internal, "they have one partition a task"),
        ("live inputs", kind.live, "their producers choose the partition"),
    )
    found = [f"{what} ({', '.join(sorted(names))}): {why}" for what, names, why in reasons if names]
    if found:
        raise ConfigError(
            f"{settings.GROUPER.name} = {grouper} does not fit an app with "
            f"{'; with '.join(found)}; leave it at {BY_PARTITION}"
        )


def check_containers(containers: int, tasks: int) -> None:
    """Raise ConfigError if so many containers (0: any number) are more than there are tasks."""
    if containers > tasks:
        raise ConfigError(
            f"{settings.CONTAINER_COUNT.name} = {containers}, but the app has {tasks} "
            f"{'task' if tasks == 1 else 'tasks'}, and some containers would have nothing to do; "
            f"set it to {tasks} at most, or give the app more partitions"
        )
