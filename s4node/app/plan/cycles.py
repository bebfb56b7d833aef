"""Cycles in a graph of streams: which streams feed themselves, and a shortest way around. Pure.

Rules
- A graph maps each stream to the streams that its handlers put on.
- Results are sorted, so that two runs report the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet


def components(edges: Mapping[str, AbstractSet[str]]) -> list[list[str]]:
    """The groups of streams that feed themselves, each sorted, in order of their first name.

    A stream belongs to at most one group; two streams of a group reach each other.
    """
    found = [
        group
        for group in _strongly_connected(edges)
        if len(group) > 1 or group[0] in edges.get(group[0], ())
    ]
    return sorted(sorted(group) for group in found)


def cycles(edges: Mapping[str, AbstractSet[str]]) -> list[list[str]]:
    """A shortest cycle for each of the :func:`components`, through its first name.

    The cycle starts with that name and does not repeat it at the end; see :func:`describe`.
    """
    return [cycle_through(group[0], set(group), edges) for group in components(edges)]


def cycle_through(
    start: str, group: AbstractSet[str], edges: Mapping[str, AbstractSet[str]]
) -> list[str]:
    """A shortest path from ``start`` back to it inside its group, without repeating ``start``."""
    came_from: dict[str, str] = {}
    waiting = deque([start])
    while True:
        name = waiting.popleft()
        for target in sorted(group & edges.get(name, set())):
            if target == start:
                path = [name]
                while path[-1] != start:
                    path.append(came_from[path[-1]])
                return path[::-1]
            if target not in came_from:
                came_from[target] = name
                waiting.append(target)


def describe(cycle: Iterable[str]) -> str:
    """The cycle as text: ``a -> b -> a``."""
    names = list(cycle)
    return " -> ".join([*names, *names[:1]])


def _strongly_connected(edges: Mapping[str, AbstractSet[str]]) -> Iterator[list[str]]:
    """Tarjan's algorithm without recursion, for long chains of streams."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for root in edges:
        if root in index:
            continue
        path: list[tuple[str, Iterator[str]]] = []
        entering: str | None = root
        while entering is not None or path:
            if entering is not None:
                index[entering] = low[entering] = len(index)
                stack.append(entering)
                on_stack.add(entering)
                path.append((entering, iter(edges.get(entering, ()))))
                entering = None
            name, targets = path[-1]
            for target in targets:
                if target not in index:
                    entering = target
                    break
                if target in on_stack:
                    low[name] = min(low[name], index[target])
            else:
                path.pop()
                if path:
                    above = path[-1][0]
                    low[above] = min(low[above], low[name])
                if low[name] == index[name]:
                    group = [stack.pop()]
                    while group[-1] != name:
                        group.append(stack.pop())
                    on_stack.difference_update(group)
                    yield group
