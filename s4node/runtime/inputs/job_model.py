"""The job model: the tasks of an app, and what each of them reads. Pure.

Rules
- Every container computes the same model from the same inputs.
- By partition there are as many tasks as ``s4.cluster.partitions``, or as the largest input has
  partitions, if that is more. Task n is "Partition n"; it has no inputs of its own if no input has
  a partition n.
- A job that goes on keeps its number of tasks when a keyed input gets more partitions: task n still
  reads partition n, and the new partitions are distributed. Events go to the task of their key,
  whatever partition they come from.
- Other groupers make one task of each group. They are refused if an app finds tasks by partition
  number: for keys (a key belongs to a partition), internal streams (one partition a task) and live
  inputs (their producers choose the partition).
- If the facts of the job change, the saved progress of a task no longer fits what the task reads.
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
"""The names of a system and a stream."""


@dataclass(frozen=True, slots=True)
class TaskModel:
    """One task: its partition number in the app, and the name under which progress is saved.

    ``broadcast`` are those of its ``ssps`` that every other task reads, too.
    """

    index: int
    name: str
    ssps: tuple[SystemStreamPartition, ...] = ()
    broadcast: frozenset[SystemStreamPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class JobModel:
    """All tasks of an app, in order, and the facts that their progress depends on.

    ``grown`` has the first number of partitions of the inputs that got more since the job began.
    """

    tasks: tuple[TaskModel, ...]
    facts: JobGuard
    grown: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AppKind:
    """The streams of an app that find tasks by partition number.

    Events of ``keyed`` streams go to the task of their key. ``internal`` streams are inside the
    app. Producers send to ``live`` streams.
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
    identities: Mapping[StreamName, str] = {},
) -> JobModel:
    """The model of an app that reads the replayable streams ``inputs``.

    ``counts`` has the number of partitions of these and of the broadcast streams; ``before`` are
    the facts of the job that is resumed. ``identities`` are the ids of the streams. Raises
    ConfigError for wrong settings.
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
                f"{settings.GROUPER.name} = {grouper} makes no task, because all inputs of the app "
                f"are broadcast; add another input, or group {BY_PARTITION}"
            )
    if len(groups) > KEY_GROUPS:
        raise ConfigError(
            f"the inputs make {len(groups)} tasks, but an app has at most {KEY_GROUPS}; read fewer "
            f"partitions, or write a grouper that puts several in one task"
        )
    check_containers(config[settings.CONTAINER_COUNT], len(groups))
    tasks = tuple(
        TaskModel(index, name, tuple(sorted({*ssps, *broadcast})), frozenset(broadcast))
        for index, (name, ssps) in enumerate(groups.items())
    )
    divided = {(ssp.system, ssp.stream) for ssp in own}
    read = sorted(divided.union((ssp.system, ssp.stream) for ssp in broadcast))
    partitions = {f"{system}.{stream}": counts[system, stream] for system, stream in read}
    rerouted = frozenset(
        f"{system}.{stream}"
        for system, stream in read
        if stream in kind.keyed or (system, stream) not in divided
    )
    resets = config.matching(settings.RESET_OFFSET)
    facts = JobGuard(
        len(tasks),
        grouper,
        config[settings.HASHER],
        partitions,
        rerouted,
        identities={f"{system}.{stream}": each for (system, stream), each in identities.items()},
        anew=frozenset(f"{system}.{stream}" for system, stream in identities if resets.get(stream)),
    )
    return JobModel(tasks, facts, {} if before is None else before.grown_to(partitions))


def _by_partition(
    least: int, ssps: Collection[SystemStreamPartition], keyed: Collection[str], had: int
) -> Mapping[str, Sequence[SystemStreamPartition]]:
    """The groups by partition number; a number that no input has is a task, too.

    A job that ``had`` tasks gets no more of them for new partitions of ``keyed`` inputs.
    """
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
    """Raise ConfigError if there are more containers (0: any number) than tasks."""
    if containers > tasks:
        raise ConfigError(
            f"{settings.CONTAINER_COUNT.name} = {containers}, but the app has {tasks} "
            f"{'task' if tasks == 1 else 'tasks'}, and some containers would have nothing to do; "
            f"set it to {tasks} at most, or give the app more partitions"
        )
