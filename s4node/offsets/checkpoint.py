"""Checkpoints: the saved progress of a task, of its producers, and of its job. Pure.

Rules
- A checkpoint has the offset of the next event for each partition that its task reads.
- Offsets fit the job that wrote them. What decides which task gets which event (the number of
  tasks, grouper, hasher, keys, partitions of the inputs) is saved beside them, and a job that
  differs is refused: it would skip events, or separate keys from their state.
- A startpoint that was read from is consumed: its id is saved with the offsets after it, until the
  startpoint is forgotten everywhere else.
- Inputs may come and go. The offset of a removed input stays in the checkpoint, so that an input
  that returns resumes where it was.
- A row of a producer, of a task or of a partition of the log, says how far its numbers are settled,
  and which life of the producer sent them. A producer with an id of its own, as each task has, does
  not expire.
- A *layout* of a durable stream is its number of partitions, with numbers that begin at 0. Layouts
  are numbered, too. When one ends, the final numbers of each producer in it are kept as long as the
  producer is known; they say which of its events have been counted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import msgspec

from s4node.config import settings
from s4node.errors import CheckpointError

KEY_ENCODING = "utf8-msgpack/4096"
"""How keys become bytes and key groups; another encoding gets another name."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The progress of a task: the next offset by ``(system, stream, partition)``.

    ``epochs`` are the epochs of the partitions that the offsets belong to, if there are any.
    ``written_ms`` is when it was written (Unix time). ``consumed`` are ids of startpoints.
    """

    offsets: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    written_ms: int = 0
    consumed: frozenset[str] = frozenset()
    epochs: Mapping[tuple[str, str, int], int] = field(default_factory=dict, compare=False)

    def over(self, before: Checkpoint) -> Checkpoint:
        offsets = {**before.offsets, **self.offsets}
        epochs = {**before.epochs, **self.epochs}
        return Checkpoint(offsets, self.written_ms, self.consumed | before.consumed, epochs)

    def without(self, startpoints: Collection[str]) -> Checkpoint:
        """This checkpoint, without startpoints that are forgotten everywhere else."""
        return replace(self, consumed=self.consumed.difference(startpoints))

    @classmethod
    def at(
        cls, positions: Mapping[str, int], written_ms: int, consumed: Collection[str] = ()
    ) -> Checkpoint:
        """A checkpoint from positions by place, such as ``log.clicks[0]``.

        Raises CheckpointError if a key is not a place.
        """
        offsets = {}
        for place, offset in positions.items():
            system, dot, rest = place.partition(".")
            stream, bracket, partition = rest.removesuffix("]").rpartition("[")
            if not (dot and bracket and partition.isdigit()):
                raise CheckpointError(
                    f"a position is saved for {place!r}, which is not system.stream[partition]"
                )
            offsets[system, stream, int(partition)] = offset
        return cls(offsets, written_ms, frozenset(consumed))

    def positions(self) -> dict[str, int]:
        return {f"{at[0]}.{at[1]}[{at[2]}]": offset for at, offset in self.offsets.items()}


@dataclass(frozen=True, slots=True)
class JobGuard:
    """The settings that the offsets of a job depend on.

    ``counts`` are the numbers of partitions of the inputs by ``system.stream``. ``rerouted`` inputs
    may get more partitions, because each event goes to the task of its key wherever it is read, or
    every task reads the partitions that are read;
    ``grown`` has the inputs that did, with their first number. ``layout`` counts how often the
    number of tasks was changed; a program does not know it. ``identities`` are those of the inputs,
    which another stream of the same name does not have; those ``anew`` begin without progress.
    """

    tasks: int
    grouper: str
    hasher: str
    counts: Mapping[str, int] = field(default_factory=dict)
    rerouted: frozenset[str] = frozenset()
    keys: str = KEY_ENCODING
    grown: Mapping[str, int] = field(default_factory=dict)
    layout: int | None = None
    identities: Mapping[str, str] = field(default_factory=dict)
    anew: frozenset[str] = field(default=frozenset(), compare=False)

    def check(self, before: JobGuard, place: str, fix: str) -> None:
        """Raise CheckpointError, with every reason, if this job cannot resume. ``before`` wrote the
        offsets at ``place``; ``fix`` is the alternative."""
        if problems := self.problems(before):
            listed = "\n".join(f"- {problem}" for problem in problems)
            raise CheckpointError(f"{place} does not fit this job:\n{listed}\n{fix}")

    def problems(self, before: JobGuard) -> list[str]:
        """The reason why this job cannot resume from what ``before`` wrote; empty if it can."""
        found = []
        regrouped = self.grouper != before.grouper
        if self.tasks != before.tasks and not regrouped:  # regrouping changes the number of tasks
            found.append(
                f"it had {before.tasks} tasks and would have {self.tasks}, so keys would move away "
                f"from their state; {self._as_many(before)}"
            )
        for key, mine, its in (
            (settings.GROUPER.name, self.grouper, before.grouper),
            (settings.HASHER.name, self.hasher, before.hasher),
        ):
            if mine != its:
                found.append(
                    f"it was written with {key} = {its}, which is now {mine}; restore that value"
                )
        if self.keys != before.keys:
            found.append(
                f"its keys were encoded as {before.keys}, and this program encodes {self.keys}; "
                f"use the version of s4node that wrote it"
            )
        if self.layout is not None and self.layout != (before.layout or 0):
            found.append(
                f"its number of partitions has been changed {before.layout or 0} times, and would "
                f"be as after {self.layout}; producers have gone on since"
            )
        for name, identity in self.identities.items():
            known = before.identities.get(name, "")
            if known and identity and known != identity and name not in self.anew:
                stream = name.partition(".")[2]
                found.append(
                    f"{name} was deleted and made anew under its name, so the offsets mean other "
                    f"events; set streams.{stream}.samza.reset.offset = true to begin anew"
                )
        for stream, count in self.counts.items():
            had = before.counts.get(stream, count)
            if count < had:
                found.append(
                    f"{stream} had {had} partitions and has {count}, so progress in the others "
                    f"would be lost; give it {had} partitions again"
                )
            elif count > had and stream not in self.rerouted:
                found.append(
                    f"{stream} had {had} partitions and has {count}, so its producers now put "
                    f"keys where other tasks read; give the input stream a key in the app, or "
                    f"start again without progress"
                )
        return found

    def _as_many(self, before: JobGuard) -> str:
        """How to get the former number of tasks, grouped as they were."""
        if self.grouper != settings.GROUPER.default:  # the only one that allows more partitions
            inputs = ", ".join(f"{name} ({count})" for name, count in before.counts.items())
            return f"have it read all inputs and partitions that it read before: {inputs}"
        found = []
        unkeyed = {
            name: count
            for name, count in self.counts.items()
            if count > before.tasks and name not in self.rerouted
        }
        if unkeyed:
            inputs = ", ".join(f"{name} ({count} partitions)" for name, count in unkeyed.items())
            found.append(f"give {inputs} a key in the app, which allows more partitions than tasks")
        if self.tasks > max(unkeyed.values(), default=0):
            found.append(f"set {settings.CLUSTER_PARTITIONS.name} = {before.tasks}")
        return ", and ".join(found)

    def over(self, before: JobGuard) -> JobGuard:
        counts = {**before.counts, **self.counts}
        grown = before.grown_to(self.counts)
        layout = max(self.layout or 0, before.layout or 0)
        known = {name: identity for name, identity in self.identities.items() if identity}
        identities = {**before.identities, **known}
        return replace(self, counts=counts, grown=grown, layout=layout, identities=identities)

    def follows(self, before: JobGuard | None) -> bool:
        """Return True if the number of partitions was changed since ``before``."""
        return (self.layout or 0) > (0 if before is None else before.layout or 0)

    def grown_to(self, counts: Mapping[str, int]) -> dict[str, int]:
        """The inputs that have grown if they have these ``counts``, with their former numbers."""
        now = {name: had for name, had in self.counts.items() if counts.get(name, had) > had}
        return {**now, **self.grown}

    def has(self, task: str) -> bool:
        """Return False for a task that only a former layout has."""
        number = task.rpartition(" ")[2]
        return not self.layout or not number.isdigit() or int(number) < self.tasks

    def to_row(self) -> dict[str, Any]:
        return {
            "tasks": self.tasks,
            "grouper": self.grouper,
            "hasher": self.hasher,
            "counts": dict(self.counts),
            "keys": self.keys,
            "grown": dict(self.grown),
            "rerouted": sorted(self.rerouted),
            "layout": self.layout or 0,
            "identities": dict(self.identities),
        }

    @classmethod
    def from_row(cls, row: Any) -> JobGuard:
        """The job of a saved form; raises CheckpointError if it is not one."""
        try:
            counts = {str(name): int(count) for name, count in row["counts"].items()}
            grown = {str(name): int(count) for name, count in row["grown"].items()}
            return cls(
                int(row["tasks"]),
                str(row["grouper"]),
                str(row["hasher"]),
                counts,
                frozenset(map(str, row["rerouted"])),
                keys=str(row["keys"]),
                grown=grown,
                layout=int(row["layout"]),
                identities=dict(row.get("identities", {})),  # not in rows of earlier versions
            )
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise CheckpointError(f"the saved description is not a job ({error!r})") from error


Producer: TypeAlias = tuple[str, str]
"""A stream's name and a producer's id."""


class SavedProducer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A producer's lane in one partition, as of a commit.

    ``number`` is the next one. ``life`` is the latest of a program, or the highest fence that an
    owner of the task has used, and ``incarnation`` names its process. ``own_id``: later lives use
    the same id. ``unreported`` are refusals that the producer may not know: number, count, reason,
    and whether the events were shed. After a savepoint was gone back to, the producer may go on at
    any number up to ``skips``: the loss of the events between was accepted.
    """

    number: int
    life: int = 0
    incarnation: str = ""
    own_id: bool = False
    unreported: tuple[tuple[int, int, str, bool], ...] = ()
    skips: int = 0


class Closing(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A producer's final ``numbers`` in a layout that has ended, by partition.

    ``unreported`` are refusals that the producer may not know: partition, number, count, reason,
    and whether the events were shed. ``lossy``: the producer got higher numbers, and may go on.
    """

    numbers: tuple[int, ...]
    unreported: tuple[tuple[int, int, int, str, bool], ...] = ()
    lossy: bool = False


Closings: TypeAlias = tuple[Closing, ...]
"""The layouts of a producer that have ended, from layout 0 on."""

SavedProducers: TypeAlias = Mapping[Producer, SavedProducer | None]
"""The changes of a commit; None if a producer is forgotten."""


def row_of(producer: Producer) -> bytes:
    """The row key of a producer; the name of a stream has no zero byte."""
    return f"{producer[0]}\0{producer[1]}".encode()


def producer_of(row: bytes) -> Producer:
    stream, _, name = row.decode().partition("\0")
    return stream, name
