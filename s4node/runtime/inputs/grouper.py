"""Groupers: which partitions of the inputs make a task. Pure.

Rules
- Every partition is in exactly one group, except broadcast ones, which every task reads.
- A grouper returns the same groups for the same partitions at every call, because every container
  of an app computes them.
- A task has the name of its group; its progress and state are saved under that name.
- Tasks are numbered in natural order of their names: "Partition 2" before "Partition 10".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from s4node.config import plugins, settings
from s4node.errors import ConfigError, described, is_signal
from s4node.offsets.system import SystemStreamPartition

Groups = dict[str, tuple[SystemStreamPartition, ...]]


class SystemStreamPartitionGrouper(Protocol):
    """Makes groups of partitions; an author's class is called without arguments."""

    def group(
        self, ssps: Sequence[SystemStreamPartition]
    ) -> Mapping[str, Iterable[SystemStreamPartition]]:
        """Return the groups by name. ``ssps`` are sorted; each must be in exactly one group."""
        ...


class GroupByPartition:
    """A task for each partition number: partition 3 of every stream belongs to "Partition 3"."""

    def group(
        self, ssps: Sequence[SystemStreamPartition]
    ) -> dict[str, list[SystemStreamPartition]]:
        groups: dict[str, list[SystemStreamPartition]] = {}
        for ssp in ssps:
            groups.setdefault(f"Partition {ssp.partition}", []).append(ssp)
        return groups


class GroupBySystemStreamPartition:
    """A task for each partition of each stream, with its name, such as "log.clicks[3]"."""

    def group(
        self, ssps: Sequence[SystemStreamPartition]
    ) -> dict[str, list[SystemStreamPartition]]:
        return {str(ssp): [ssp] for ssp in ssps}


BY_PARTITION = "by-partition"
_BUILT_IN: dict[str, type[SystemStreamPartitionGrouper]] = {
    BY_PARTITION: GroupByPartition,
    "by-ssp": GroupBySystemStreamPartition,
}


def grouper_named(name: str) -> SystemStreamPartitionGrouper:
    """The grouper that the setting names; raises ConfigError if it cannot be made."""
    if name in _BUILT_IN:
        return _BUILT_IN[name]()
    made: SystemStreamPartitionGrouper = plugins.made(name, settings.GROUPER.name, "grouper")
    plugins.lacking(made, ("group",), name, settings.GROUPER.name, "grouper")
    return made


def reader_of(name: str, ssp: SystemStreamPartition) -> str:
    """The task that reads a non-broadcast partition; empty for an author's grouper.

    An author's grouper has to be asked with all partitions.
    """
    if name not in _BUILT_IN:
        return ""
    (task,) = _BUILT_IN[name]().group((ssp,))
    return task


def grouped(name: str, ssps: Collection[SystemStreamPartition]) -> Groups:
    """The groups that the grouper ``name`` makes of ``ssps``, in the order of their tasks.

    Raises ConfigError if an author's grouper raises, or loses, doubles or invents partitions.
    """
    ordered = tuple(sorted(set(ssps)))
    grouper = grouper_named(name)
    if name in _BUILT_IN:
        groups = grouper.group(ordered)
    else:
        try:
            groups = {group: list(members) for group, members in grouper.group(ordered).items()}
        except BaseException as error:
            if is_signal(error):
                raise
            raise ConfigError(
                f"{_blamed(name)} raised {described(error)}; it must return a mapping "
                f"from names of tasks to partitions"
            ) from error
        _check(name, groups, ordered)
    return {group: tuple(sorted(groups[group])) for group in sorted(groups, key=_natural)}


def _check(
    name: str,
    groups: Mapping[str, Iterable[SystemStreamPartition]],
    ssps: Sequence[SystemStreamPartition],
) -> None:
    homes: dict[SystemStreamPartition, list[str]] = {ssp: [] for ssp in ssps}
    problems: list[str] = []
    for group, members in groups.items():
        if not isinstance(group, str) or not group or not group.isprintable():
            problems.append(f"calls a task {group!r}; give it a printable name")
        for ssp in members:
            if ssp in homes:
                homes[ssp].append(str(group))
            else:
                problems.append(f"puts {ssp}, not an input, in task {group!r}; leave it out")
        if not members:
            problems.append(f"gives task {group!r} nothing to read; leave it out")
    for ssp, tasks in homes.items():
        if not tasks:
            problems.append(f"loses {ssp}; put it in a task")
        elif len(tasks) > 1:
            problems.append(f"puts {ssp} in {' and '.join(map(repr, tasks))}; put it in one task")
    if problems:
        raise ConfigError("\n".join(f"{_blamed(name)} {problem}" for problem in problems))


def _blamed(name: str) -> str:
    return f"grouper {name!r} of {settings.GROUPER.name}"


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key that puts ``Partition 2`` before ``Partition 10``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _parts(name)]


def _parts(name: str) -> list[str]:
    return re.split(r"([0-9]+)", name)
