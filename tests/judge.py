"""The judge: what must be true of a cluster, in memory or of processes, whatever was done to it.

Rules
- Each acknowledged event is there once, and those of a key are in their order.
- The log of a task's state has one writer at a time, by its fence.
- What nobody needs any more is gone: sessions, files and objects are bounded.
- Functions return what is not true, in lines; nothing if all is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from s4node.state import remote_log, remote_task
from s4node.state.remote_log import Checkpoint, Claim, Commit, Entry
from s4node.testing.cluster_test import Usage

K = TypeVar("K")

MOST_FILES = 100
"""The files of a task, and the objects of each of its folders at a URL, if events are few."""

MOST_CONNECTIONS, MOST_TASKS = 6, 4
"""The ends of connections between two processes, and trio's tasks for each of these."""

_SHOWN = 5
_NONE: Mapping[Any, Collection[int]] = {}


def told(what: str, cases: Collection[object]) -> list[str]:
    """A line that says how many cases there are, and the first of them; nothing without any."""
    shown = ", ".join(map(str, list(cases)[:_SHOWN]))
    return [f"{what} ({len(cases)}): {shown}"] if cases else []


def wrong_events(
    came: Mapping[K, Iterable[int]],
    acknowledged: Mapping[K, Collection[int]] = _NONE,
    sent: Mapping[K, Collection[int]] | None = None,
) -> list[str]:
    """The errors in the numbers that came, by key: each of those ``acknowledged`` is there,
    none is twice, each is above those before it, and all were ``sent``."""
    missing: list[tuple[K, int]] = []
    doubled: list[tuple[K, int]] = []
    disorder: list[tuple[K, int]] = []
    unknown: list[tuple[K, int]] = []
    for key in [*acknowledged, *(key for key in came if key not in acknowledged)]:
        seen: set[int] = set()
        newest = -1
        for number in came.get(key, ()):
            if number in seen:
                doubled.append((key, number))
            elif number < newest:
                disorder.append((key, number))
            seen.add(number)
            newest = max(newest, number)
        missing += [(key, number) for number in acknowledged.get(key, ()) if number not in seen]
        if sent is not None:
            ours = sent.get(key, ())
            unknown += [(key, number) for number in sorted(seen) if number not in ours]
    return [
        *told("lost", missing),
        *told("more than once", doubled),
        *told("out of order", disorder),
        *told("never sent", unknown),
    ]


def in_lives(came: Mapping[K, Iterable[int]], lives: int) -> dict[K, list[int]]:
    """The numbers that came, by key, without those that came again in a further life. A life may
    begin with any number that has come before, and counts up from there."""
    found: dict[K, list[int]] = {}
    for key, numbers in came.items():
        kept = found[key] = []
        newest, left = -1, lives - 1
        for number in numbers:
            again = bool(kept) and number <= kept[-1]
            if again and number != newest + 1 and left:
                left -= 1
            elif not again or number != newest + 1:
                kept.append(number)
            newest = number
    return found


def wrong_state(truth: Mapping[Any, object], kept: Mapping[Any, object]) -> list[str]:
    """Where kept state is not the truth, by key."""
    return [
        f"{key} is {kept.get(key)}, and not {truth.get(key)}"
        for key in sorted(truth.keys() | kept.keys())
        if kept.get(key) != truth.get(key)
    ]


def entries_in(folder: Path) -> dict[int, Entry]:
    files = {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix != ".tmp"}
    return entries_of(files)


def entries_of(objects: Mapping[str, bytes]) -> dict[int, Entry]:
    """The entries of a log whose objects these are, by name."""
    decoded = {name: remote_log.decoded(data, name) for name, data in objects.items()}
    return {remote_log.number_of(name): each for name, each in decoded.items() if each is not None}


def wrong_log(entries: Mapping[int, Entry]) -> list[str]:
    """The errors in a task's log: a fence has one owner, which alone writes after its claim,
    fences grow, and nothing is missing after the newest checkpoint."""
    found = []
    owners: dict[int, str] = {}
    claimed = None
    for number, entry in sorted(entries.items()):
        fence, name = entry.owner
        if owners.setdefault(fence, name) != name:
            found.append(
                f"entry {number}: fence {fence} has two owners, {owners[fence]} and {name}"
            )
        if isinstance(entry, Claim):
            if claimed is not None and entry.owner.fence <= claimed.fence:
                found.append(
                    f"entry {number}: a claim under {fence} after one under {claimed.fence}"
                )
            claimed = entry.owner
        elif entry.owner != claimed:
            found.append(f"entry {number}: written by {entry.owner}, and {claimed} has claimed it")
    bases = [entry.base for entry in entries.values() if isinstance(entry, Checkpoint)]
    first = max(bases, default=0) + 1
    missing = [n for n in range(first, max(entries, default=0) + 1) if n not in entries]
    found += told(f"missing after a checkpoint of {first - 1}", missing)
    commits = [entry.commit for _, entry in sorted(entries.items()) if isinstance(entry, Commit)]
    if commits != sorted(set(commits)):
        found.append("commits are not in their order, or twice")
    return found


def wrong_store(objects: Mapping[str, bytes]) -> list[str]:
    """The errors in the logs of all tasks at a URL; ``objects`` are by path."""
    logs: dict[str, dict[str, bytes]] = {}
    for path, data in objects.items():
        place, _, name = path.rpartition("/log/")
        if place:
            logs.setdefault(place, {})[name] = data
    return [f"{place}: {text}" for place in logs for text in wrong_log(entries_of(logs[place]))]


def too_many(folders: Iterable[Path], objects: Mapping[str, bytes]) -> list[str]:
    """The tasks that keep more files in one of these folders, or objects at a URL, than they may,
    however long they run. Of the entries of a log those count that checkpoints replace; of all
    others there are at most those since the last checkpoint but one."""
    found: Counter[str] = Counter()
    for folder in folders:
        for task in folder.glob("*/*/tasks/*"):
            found[str(task)] = sum(1 for _ in task.rglob("*"))
    places: dict[str, dict[str, bytes]] = {}
    for path, data in objects.items():
        place, _, name = path.rpartition("/")
        places.setdefault(place, {})[name] = data
    long, most = [], MOST_FILES + 3 * remote_task.MOST_COMMITS
    for place, files in places.items():
        if not place.endswith("/log"):
            found[f"{place} at the URL"] = len(files)
        else:
            replaced, rest = _replaced(entries_of(files))
            found[f"{place} at the URL, replaced by checkpoints"] = replaced
            long += [(place, rest)] if rest > most else []
    return [
        *told("too many files", [each for each in found.items() if each[1] > MOST_FILES]),
        *told("logs without checkpoints", long),
    ]


def _replaced(entries: Mapping[int, Entry]) -> tuple[int, int]:
    """How many entries of a log the last two checkpoints replace, and how many others it has."""
    bases = sorted(entry.base for entry in entries.values() if isinstance(entry, Checkpoint))
    base = bases[-2] if len(bases) > 1 else 0
    replaced = sum(remote_log.is_removable(entries[number]) for number in entries if number <= base)
    return replaced, len(entries) - replaced


def too_much_memory(usage: Usage, processes: int) -> list[str]:
    """The leaks of processes with nothing left to do: events that wait, and more connections and
    tasks of trio than there are pairs of processes."""
    most = MOST_CONNECTIONS * processes**2
    found = [("connections", usage.connections, most), ("tasks", usage.tasks, MOST_TASKS * most)]
    return [
        *([f"{usage.waiting} events wait in memory"] if usage.waiting else []),
        *(f"{count} {name}, and not at most {most}" for name, count, most in found if count > most),
    ]


def by_key(pairs: Iterable[tuple[K, int]]) -> dict[K, list[int]]:
    """Numbers by their keys, in the order in which they came."""
    found: dict[K, list[int]] = {}
    for key, number in pairs:
        found.setdefault(key, []).append(number)
    return found


def counted(keys: Iterable[K]) -> dict[K, range]:
    """The numbers of events that count up by key: from 0 to below how many there are."""
    return {key: range(count) for key, count in Counter(keys).items()}
