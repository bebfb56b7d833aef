"""The tasks of a job in a new layout, and the reasons that prevent one.

Rules
- A layout is a number of partitions. The rows of a key move with its key group. What belongs to a
  task and to no key moves if it means the same elsewhere (positions of inputs, numbers of
  producers, versions of PEs). Anything else prevents the new layout, and is named.
- No events may be on their way between tasks or to consumers.
- The final numbers of each producer are added to those of its earlier layouts, and its numbers
  begin at 0. Its life is kept, so that an older life is still refused.
- The tasks get new lives as producers, so their own numbers begin at 0, too.
- A table has the same number in all tasks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from s4node.errors import CheckpointError
from s4node.events.keys import KEY_GROUPS
from s4node.net.egress.outbox_rows import channels_of, data_of, sort_rows, weight_of
from s4node.offsets.checkpoint import Closing, Closings, JobGuard, Producer, SavedProducer
from s4node.runtime.event_time.saved_times import EVENT_TIME, lower_times
from s4node.runtime.event_time.state_use import USE
from s4node.runtime.inputs.grouper import BY_PARTITION
from s4node.runtime.outputs.channels import parts_of
from s4node.state.job import CUT, DONE, ENDED, EPOCH_OF, LIFE, SENT, WRITTEN

_TABLE, _VERSIONS, _TTL = "table:", "versions of ", "ttl of "
_ANEW = {"format", "commit", "owners", "shipped", DONE, WRITTEN, LIFE, CUT, SENT}
"""Facts that each task begins with, or gets otherwise."""

_decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class FormerTask:
    """The state of a task of the former layout that belongs to no key.

    ``facts`` are encoded. ``singletons`` are the tables that have a row without a key.
    """

    name: str
    partition: int
    facts: Mapping[str, bytes]
    positions: Mapping[str, int]
    consumed: frozenset[str]
    producers: Mapping[Producer, SavedProducer]
    closings: Mapping[Producer, Closings]
    outbox: Sequence[tuple[bytes, bytes]]
    singletons: frozenset[int]

    @property
    def tables(self) -> dict[str, int]:
        return {
            name.removeprefix(_TABLE): _decode(data)
            for name, data in self.facts.items()
            if name.startswith(_TABLE)
        }


@dataclass
class NewTask:
    """The state of a task of the new layout that belongs to no key."""

    facts: dict[str, bytes] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class NewLayout:
    """The tasks of a new layout.

    All have the same ``producers``, ``closings`` and ``consumed``. ``renumbered`` has the tables
    that get another number, for each former partition.
    """

    tasks: Sequence[NewTask]
    consumed: frozenset[str]
    producers: Mapping[Producer, SavedProducer]
    closings: Mapping[Producer, Closings]
    renumbered: Mapping[int, Mapping[int, int]]
    cut: int


def groups_of(partition: int, partitions: int) -> range:
    ends = [-(-KEY_GROUPS * each // partitions) for each in (partition, partition + 1)]
    return range(*ends)


def check_number(guard: JobGuard, partitions: int) -> None:
    """Raise CheckpointError if no job like this can have so many partitions."""
    if guard.grouper != BY_PARTITION:
        raise CheckpointError(
            f"its tasks are groups of inputs (grouper {guard.grouper}), not partitions; change the "
            f"grouper's groups instead"
        )
    if guard.hasher == "kafka":
        raise CheckpointError(
            "its keys are where Kafka's producers put them (s4.hasher = kafka), and another number "
            "of tasks would move nearly all of them; begin a job of another name with the topics "
            "that have as many partitions as it needs tasks"
        )
    if partitions == guard.tasks:
        raise CheckpointError(f"it has {partitions} partitions already")
    for name, count in guard.counts.items():
        if count > partitions and name not in guard.rerouted:
            raise CheckpointError(
                f"its input {name} has {count} partitions and no key, so each of them needs a "
                f"task; give {count} partitions or more, or give the input stream a key in the app"
            )


def new_layout(
    former: Sequence[FormerTask],
    guard: JobGuard,
    partitions: int,
    own: str,
    *,
    stores_by_key: bool,
) -> NewLayout:
    """The tasks of a job in a layout of so many ``partitions``.

    ``own`` is the prefix of its tasks' producer ids. ``stores_by_key`` says that the keys of stores
    are keys of streams. Raises CheckpointError with everything that prevents the layout.
    """
    problems = [
        *_singletons(former),
        *([] if stores_by_key else _stores(former)),
        *_unprocessed(former, own),
        *_different_facts(former),
        *_different_positions(former),
    ]
    if problems:
        listed = "\n".join(f"- {problem}" for problem in problems)
        raise CheckpointError(f"the job keeps its {guard.tasks} partitions:\n{listed}")
    tables = _tables(former)
    shared = _shared_facts(former) | {_TABLE + name: _encode(n) for name, n in tables.items()}
    tasks = [NewTask(dict(shared)) for _ in range(partitions)]
    readers: defaultdict[str, list[FormerTask]] = defaultdict(list)
    for task in former:
        for place in task.positions:
            readers[place].append(task)
    for place, which in readers.items():
        everywhere = len(which) > 1
        epoch = which[0].facts.get(EPOCH_OF + place)
        number = int(place[place.rindex("[") + 1 : -1])
        for new in tasks if everywhere else [tasks[number % partitions]]:
            new.positions[place] = which[0].positions[place]
            if epoch is not None:
                new.facts[EPOCH_OF + place] = epoch
    for name, count in _ended(former).items():
        tasks[0].facts[name] = _encode(count)
    producers, closings = _producers(former, guard, own)
    cuts = [_decode(task.facts[CUT]) for task in former if CUT in task.facts]
    return NewLayout(
        tasks,
        frozenset(each for task in former for each in task.consumed),
        producers,
        closings,
        {task.partition: _renumbered(task, tables) for task in former},
        max(cuts, default=0),
    )


def _tables(former: Iterable[FormerTask]) -> dict[str, int]:
    """One number for each table; as many as possible keep theirs."""
    numbers: dict[str, int] = {}
    for task in former:
        for name, number in task.tables.items():
            if name not in numbers:
                taken = set(numbers.values())
                numbers[name] = number if number not in taken else max(taken) + 1
    return numbers


def _renumbered(task: FormerTask, numbers: Mapping[str, int]) -> dict[int, int]:
    return {number: numbers[n] for n, number in task.tables.items() if number != numbers[n]}


def _shared_facts(former: Iterable[FormerTask]) -> dict[str, bytes]:
    shared: dict[str, bytes] = {}
    for task in former:
        for name, data in task.facts.items():
            if name in _ANEW or name.startswith((_TABLE, EPOCH_OF, ENDED)):
                continue
            shared[name] = _merged(name, shared.get(name, data), data)
    return shared


def _merged(name: str, one: bytes, other: bytes) -> bytes:
    """The newer of two values of a fact that tasks learn at different times."""
    first, second = _decode(one), _decode(other)
    if name.startswith(_TTL):
        return one if first is True or (second is not True and first >= second) else other
    if name.startswith(_VERSIONS):
        return one if len(first) >= len(second) else other
    if name == EVENT_TIME:
        return _encode(lower_times(first, second))
    return one


def _ended(former: Iterable[FormerTask]) -> Counter[str]:
    """The numbers of events of forgotten producers, by the name of the fact."""
    found: Counter[str] = Counter()
    for task in former:
        for name, data in task.facts.items():
            if name.startswith(ENDED):
                found[name] += _decode(data)
    return found


def _producers(
    former: Sequence[FormerTask], guard: JobGuard, own: str
) -> tuple[dict[Producer, SavedProducer], dict[Producer, Closings]]:
    """The producers outside the job, which begin at 0, and their final numbers."""
    rows: defaultdict[Producer, dict[int, SavedProducer]] = defaultdict(dict)
    before: dict[Producer, Closings] = {}
    for task in former:
        for producer, kept in task.producers.items():
            if not producer[1].startswith(own):
                rows[producer][task.partition] = kept
        before |= task.closings
    producers, closings = {}, {}
    for producer, by_partition in rows.items():
        latest = max(by_partition.values(), key=lambda kept: kept.life)
        producers[producer] = SavedProducer(0, latest.life, latest.incarnation, latest.own_id)
        known = before.get(producer, ())
        unknown = (Closing(()),) * ((guard.layout or 0) - len(known))
        closings[producer] = (*known, *unknown, _closing(by_partition, guard.tasks))
    return producers, closings


def _closing(by_partition: Mapping[int, SavedProducer], partitions: int) -> Closing:
    return Closing(
        tuple(by_partition[p].number if p in by_partition else 0 for p in range(partitions)),
        tuple((p, *each) for p, kept in sorted(by_partition.items()) for each in kept.unreported),
        any(kept.skips for kept in by_partition.values()),
    )


# -- what prevents it -----------------------------------------------------------------------------


def _singletons(former: Iterable[FormerTask]) -> list[str]:
    found = {
        name.removeprefix("pe ")
        for task in former
        for name, number in task.tables.items()
        if number in task.singletons
    }
    return [
        f"PE {name} is a singleton: each task has one of its own, and they cannot be made into "
        f"another number of them"
        for name in sorted(found)
    ]


def _stores(former: Iterable[FormerTask]) -> list[str]:
    found = {name for task in former for name in task.tables if name.startswith("store ")}
    return [
        f"{name} belongs to tasks. If each key in it is a key of the streams that its task reads, "
        f"or a tuple that begins with one, add --stores-by-key"
        for name in sorted(found)
    ]


def _unprocessed(former: Sequence[FormerTask], own: str) -> list[str]:
    """The events that a task has put for others, or for itself, and that are not processed."""
    by_partition = {task.partition: task for task in former}
    found: Counter[tuple[str, str]] = Counter()
    for task in former:
        life = task.facts.get(LIFE)
        name = f"{own}{task.name}#{'' if life is None else _decode(life)}"
        for channel, rows in channels_of(task.outbox).items():
            stream, consumer = parts_of(channel)
            if consumer:
                found[stream, consumer] += weight_of(rows)[0]
                continue
            saved = sort_rows(channel, rows)
            waiting = sum(count for _, count in saved.spilled) + sum(
                data_of(row)[0].count for row in saved.own
            )
            for at, frames in saved.frames.items():
                kept = (
                    by_partition[at].producers.get((stream, name)) if at in by_partition else None
                )
                number = 0 if kept is None else kept.number
                waiting += sum(max(0, each.end - max(each.first, number)) for each in frames)
            found[stream, ""] += waiting
    return [
        f"{events} events on stream {stream} "
        + (
            f"wait for {consumer}: start both until it has taken them, and stop again"
            if consumer
            else "are between its tasks: start it, and stop it in order"
        )
        for (stream, consumer), events in sorted(found.items())
        if events
    ]


def _different_facts(former: Sequence[FormerTask]) -> list[str]:
    problems = []
    known: dict[str, tuple[str, bytes]] = {}
    for task in former:
        for name, data in task.facts.items():
            if name in {*_ANEW, EVENT_TIME, USE} or name.startswith(
                (_TABLE, EPOCH_OF, ENDED, _TTL)
            ):
                continue
            first, other = known.setdefault(name, (task.name, data))
            if name.startswith(_VERSIONS):
                fits = all(a == b for a, b in zip(_decode(other), _decode(data), strict=False))
            else:
                fits = other == data
            if not fits:
                problems.append(
                    f"{name} differs between {first} and {task.name}: start the app and stop it in "
                    f"order, so that all tasks have the same"
                )
    return problems


def _different_positions(former: Sequence[FormerTask]) -> list[str]:
    places: defaultdict[str, set[int]] = defaultdict(set)
    for task in former:
        for place, at in task.positions.items():
            places[place].add(at)
    return [
        f"its tasks have read {place}, which all of them read, to {min(at)} and to {max(at)}: "
        f"start it until all are at the end, and stop it in order"
        for place, at in sorted(places.items())
        if len(at) > 1
    ]
