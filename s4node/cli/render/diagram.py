"""The diagram of an app: its PEs, its streams, and which streams are feedback. Pure.

Rules
- PEs are in the order in which events reach them. A stream that leads to a PE at or before one that
  puts on it is *feedback*. Every cycle has such a stream.
- A stream that no PE puts on comes from outside if it is an input, else from the app itself (its
  sources).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from s4node.app.app import App
from s4node.app.plan import dataflow
from s4node.app.plan.cycles import cycles as cycles_of
from s4node.app.plan.graph import rule_of
from s4node.app.prototype import Prototype
from s4node.app.stream import Stream
from s4node.errors import GraphError

OF_THE_APP = ""
"""The name of the app itself in ``sources``; PEs always have a name."""


@dataclass(frozen=True)
class PE:
    """A PE. ``notes`` are its settings, such as "every 0.5 s"."""

    name: str
    class_name: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Edge:
    """A stream. ``kind`` is input, internal or output; ``key`` may be empty.

    ``sources`` and ``targets`` are names of PEs, in the diagram's order. A ``feedback`` stream
    leads back to a PE that events have already passed.
    """

    name: str
    kind: str
    key: str
    types: tuple[str, ...]
    broadcast: bool
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    feedback: bool

    @property
    def carries(self) -> str:
        """The event types and the key."""
        parts = [", ".join(self.types)]
        if self.key:
            parts.append(f"by {self.key}")
        if self.broadcast:
            parts.append("to all partitions")
        return " ".join(filter(None, parts))


@dataclass(frozen=True)
class Diagram:
    app: str
    pes: tuple[PE, ...]
    streams: tuple[Edge, ...]
    cycles: tuple[tuple[str, ...], ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def diagram_of(app: App) -> Diagram:
    puts = dataflow.puts(app)
    order = _order(app, puts)
    place = {name: at for at, name in enumerate(order)}
    edges = []
    for stream in app.streams.values():
        sources = [name for name in order if stream.name in puts[name]]
        targets = sorted({target.name for target in stream.targets}, key=place.__getitem__)
        feedback = any(place[t] <= place[s] for t in targets for s in sources)
        if not sources and stream.kind != "input":
            sources = [OF_THE_APP]
        edges.append(
            Edge(
                stream.name,
                stream.kind,
                _key(stream),
                tuple(kind.name for kind in stream.types),
                stream.broadcast,
                tuple(sources),
                tuple(targets),
                feedback,
            )
        )
    pes = [_pe(app.prototypes[name][0]) for name in order]
    cycles = tuple(map(tuple, cycles_of(dataflow.edges(app))))
    return Diagram(app.name, tuple(pes), tuple(edges), cycles)


def _order(app: App, puts: dict[str, set[str]]) -> list[str]:
    """The PEs in the order in which events reach them: depth first, then as declared.

    A cycle begins with the PE that was declared first.
    """
    behind = {name: [t.name for t in stream.targets] for name, stream in app.streams.items()}
    fed = {t for name in app.prototypes for put in puts[name] for t in behind[put]}
    inputs = [s.name for s in app.streams.values() if s.kind == "input"]
    roots = dict.fromkeys(
        [pe for name in inputs for pe in behind[name] if pe not in fed]
        + [pe for name in inputs for pe in behind[name]]
        + [pe for pe in app.prototypes if pe not in fed]
        + list(app.prototypes)
    )
    finished: dict[str, None] = {}
    met: set[str] = set()
    # the result is the reverse order of finishing, so everything goes from last to first
    for root in _leaving_room(list(roots), puts, behind):
        if root in met:
            continue
        met.add(root)
        path = [(root, _next(app, puts[root], behind))]
        while path:
            name, following = path[-1]
            pe = next((pe for pe in following if pe not in met), None)
            if pe is None:
                path.pop()
                finished[name] = None
            else:
                met.add(pe)
                path.append((pe, _next(app, puts[pe], behind)))
    return list(finished)[::-1]


def _leaving_room(
    roots: list[str], puts: dict[str, set[str]], behind: dict[str, list[str]]
) -> list[str]:
    """The roots, last to first, without those that another root reaches."""
    reached: set[str] = set()
    kept: list[str] = []
    for root in roots:
        if root in reached:
            continue
        kept.append(root)
        waiting = [root]
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += [pe for stream in puts[name] for pe in behind[stream]]
    return kept[::-1]


def _next(app: App, put: set[str], behind: dict[str, list[str]]) -> Iterator[str]:
    """The PEs that some streams lead to, the last declared first."""
    streams = [name for name in app.streams if name in put]
    return iter([pe for name in reversed(streams) for pe in reversed(behind[name])])


def _pe(prototype: Prototype) -> PE:
    notes = []
    if prototype.singleton:
        notes.append("singleton")
    if prototype.timer_interval:
        notes.append(f"every {prototype.timer_interval:g} s")
    for trigger in prototype.triggers:
        limits = [f"{trigger.events} {trigger.event_type.__name__}"] if trigger.events else []
        limits += [f"{trigger.seconds:g} s"] if trigger.seconds else []
        notes.append(f"trigger: {' or '.join(limits)}")
    bounds = [f"{prototype.cache_size} keys"] if prototype.cache_size else []
    bounds += [f"{prototype.cache_idle:g} s idle"] if prototype.cache_idle else []
    if bounds:
        notes.append(f"cache: {', '.join(bounds)}")
    return PE(prototype.name, prototype.cls.__name__, tuple(notes))


def _key(stream: Stream) -> str:
    try:
        rule = rule_of(stream)
    except GraphError:  # the check of the graph reports it better
        return "?"
    if rule is None:
        return ""
    if rule.attributes:
        return "+".join(rule.attributes)
    if rule.name:
        return rule.name.removeprefix("@")
    name = getattr(stream.key, "__name__", "") or type(stream.key).__name__
    return "a function" if name == "<lambda>" else name
