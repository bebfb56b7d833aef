"""Routing compiled to loops: from a key spec to the keys of events, and to their partitions.

Rules
- A key spec is compiled once. Each event costs an attribute read, a memo lookup and an append, in
  one loop for each batch.
- A key spec made of attribute names has a name that both sides can compare ("origin+dest");
  functions have none, KeyFinder objects have one if they say so.
- The names in generated code come only from this module and from attribute names that are checked
  to be identifiers.
"""

from __future__ import annotations

import keyword
import sys
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter, length_hint
from typing import Any, TypeAlias

from s4node.errors import GraphError, KeyFinderError, described, is_signal
from s4node.events.event import GenericEvent
from s4node.events.keys import KeyFinder, KeySpec, Partitioner, check_key
from s4node.events.schema import TypeDecl

Router: TypeAlias = Callable[[Any, Sequence[Callable[[Any], None]]], None]
"""``route(iterator, appends)``: hands each event to its partition's append."""


class KeyRule:
    """A compiled KeySpec.

    ``name`` is what both ends compare ("user", "origin+dest", or "@" and a KeyFinder's own name;
    empty if it has none). ``expression(var)`` is Python source for the key of the event ``var``;
    ``bindings`` are the names it needs. ``checked`` makes attributes pass check_key first.
    """

    __slots__ = ("_expression", "attributes", "bindings", "name")

    def __init__(self, spec: KeySpec, *, generic: bool = False, checked: bool = False) -> None:
        self.attributes: tuple[str, ...] = ()
        self.bindings: dict[str, Any] = {}
        if isinstance(spec, str) or (
            isinstance(spec, (list, tuple)) and spec and all(isinstance(s, str) for s in spec)
        ):
            names = (spec,) if isinstance(spec, str) else tuple(spec)
            for name in names:
                if not generic and (not name.isidentifier() or keyword.iskeyword(name)):
                    raise GraphError(f"key {name!r} is not an attribute's name")
            self.attributes = names
            self.name = "+".join(names) if all(map(str.isidentifier, names)) else ""
            reads = [f"{{e}}._attributes[{n!r}]" if generic else f"{{e}}.{n}" for n in names]
            self._expression = reads[0] if len(reads) == 1 else f"({', '.join(reads)})"
            if checked:
                self._check_text()
            return
        if isinstance(spec, KeyFinder):
            find: Callable[[Any], Any] = spec.get
            name = str(getattr(spec, "name", ""))
            if ":" in name:
                raise GraphError(f"KeyFinder name {name!r} has a ':' in it; leave that out")
            self.name = f"@{name}" if name else ""
        elif callable(spec):
            find = spec
            self.name = ""
        else:
            raise GraphError(
                f"{spec!r} is not a key: give an attribute name, several names, a KeyFinder, or a "
                f"function of the event"
            )
        self.bindings = {"_find": find}
        self._expression = "_find({e})"
        self._check_text()

    def _check_text(self) -> None:
        """Check keys that are not text."""
        self.bindings["_check"] = check_key
        self._expression = (
            f"(found if (found := {self._expression}).__class__ is str else _check(found))"
        )

    def expression(self, var: str) -> str:
        """Source text of the key of the event in the variable ``var``."""
        return self._expression.replace("{e}", var)

    def finder(self) -> Callable[[Any], Any]:
        """The key of one event, for the slow paths."""
        if not self.bindings and "._attributes[" not in self._expression:
            return attrgetter(*self.attributes)
        lines = ["def key_of(e):", f"    return {self.expression('e')}"]
        return compiled("key_of", lines, self.bindings)  # type: ignore[no-any-return]


def told_key(spec: KeySpec | None) -> str:
    """A key in words, for messages."""
    if spec is None:
        return "none"
    name = KeyRule(spec, generic=True).name
    if name.startswith("@"):
        return f"KeyFinder {name[1:]!r}"
    return name or f"{getattr(spec, '__qualname__', type(spec).__qualname__)}, which has no name"


def holds_keys(types: Iterable[TypeDecl], attributes: Sequence[str]) -> bool:
    """Return True if these fields of all the types hold nothing but keys.

    A value of any other type may equal a key and would share its instance: True == 1 == 1.0.
    """
    return all(
        {field: kind for field, kind, _ in declared.fields}.get(name) in ("str", "int", "bytes")
        for declared in types
        for name in attributes
    )


def compiled(name: str, lines: Sequence[str], bindings: dict[str, Any]) -> Any:
    """The function ``name`` defined by the source ``lines`` over ``bindings``."""
    source = "\n".join(lines)
    scope = dict(bindings)
    exec(compile(source, f"<s4node {name}>", "exec"), scope)  # noqa: S102 - our own source
    return scope[name]


def router(rule: KeyRule, partitioner: Partitioner) -> Router:
    """A loop that hands each event to ``appends[partition of its key]``."""
    lines = [
        "def route(it, appends):",
        "    for e in it:",
        f"        appends[memo[{rule.expression('e')}]](e)",
    ]
    return compiled("route", lines, {**rule.bindings, "memo": partitioner.memo})  # type: ignore[no-any-return]


def route(
    run: Router, events: Sequence[Any], partitions: int, most_failures: int = sys.maxsize
) -> tuple[list[list[Any]], list[tuple[int, str]]]:
    """Events by partition, and ``(index, reason)`` of those without a key.

    Failures are slow, so routing stops after ``most_failures`` of them.
    """
    lanes: list[list[Any]] = [[] for _ in range(partitions)]
    appends = [lane.append for lane in lanes]
    failures: list[tuple[int, str]] = []
    it = iter(events)
    while True:
        try:
            run(it, appends)
        except BaseException as error:
            if is_signal(error):
                raise
            failures.append((failed_at(it, len(events)), key_failure(error)))
            if len(failures) < most_failures:
                continue
        return lanes, failures


def placed(
    events: Iterable[Any], partition_of: Callable[[Any], int], most_failures: int = sys.maxsize
) -> tuple[list[int], list[tuple[int, str]]]:
    """The partition of each event's key, -1 if it is not found, with the reasons by index.

    For events that need their numbers, one by one. Failures are slow, so it stops after
    ``most_failures`` of them.
    """
    places: list[int] = []
    failures: list[tuple[int, str]] = []
    for event in events:
        try:
            places.append(partition_of(event))
        except BaseException as error:  # the app's KeyFinder may raise anything
            if is_signal(error):
                raise
            failures.append((len(places), key_failure(error)))
            places.append(-1)
            if len(failures) == most_failures:
                break
    return places, failures


def failed_at(it: Any, total: int) -> int:
    """The index of the event that a list iterator handed out last."""
    return total - length_hint(it) - 1


def key_failure(error: BaseException) -> str:
    """Why no key was found, in words, from the KeyFinder's exception."""
    if isinstance(error, KeyFinderError):
        return str(error)
    return f"the KeyFinder raised {described(error)}"


def is_generic(types: Sequence[type]) -> bool:
    """Return True if a stream of these types carries only GenericEvents."""
    return tuple(types) == (GenericEvent,)
