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
from functools import lru_cache
from operator import attrgetter, length_hint
from types import CodeType
from typing import Any

from msgspec import inspect

from s4node.errors import EventTimeError, GraphError, KeyFinderError, described, is_signal
from s4node.events.event import GenericEvent
from s4node.events.keys import KeyFinder, KeySpec, Partitioner, check_key
from s4node.events.schema import GENERIC
from s4node.events.type_declaration import TypeDecl


class KeyRule:
    """A compiled KeySpec.

    ``name`` is what both ends compare ("user", "origin+dest", or "@" and a KeyFinder's own name;
    empty if it has none). ``expression(var)`` is Python source for the key of the event ``var``;
    ``bindings`` are the names it needs. ``checked`` makes attributes pass check_key first.
    """

    __slots__ = ("_expression", "attributes", "bindings", "generic", "name")

    def __init__(self, spec: KeySpec, *, generic: bool = False, checked: bool = False) -> None:
        self.attributes: tuple[str, ...] = ()
        self.bindings: dict[str, Any] = {}
        self.generic = False  # attributes are read from a GenericEvent
        if isinstance(spec, str) or (
            isinstance(spec, (list, tuple)) and spec and all(isinstance(s, str) for s in spec)
        ):
            names = (spec,) if isinstance(spec, str) else tuple(spec)
            for name in names:
                if not generic and (not name.isidentifier() or keyword.iskeyword(name)):
                    raise GraphError(f"key {name!r} is not an attribute's name")
            self.attributes = names
            self.generic = generic
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
        self.bindings["_check"] = check_key
        self._expression = (
            f"(found if (found := {self._expression}).__class__ is str else _check(found))"
        )

    def expression(self, var: str) -> str:
        """Source text of the key of the event in the variable ``var``."""
        return self._expression.replace("{e}", var)

    def finder(self) -> Callable[[Any], Any]:
        if not self.bindings and "._attributes[" not in self._expression:
            return attrgetter(*self.attributes)
        lines = ["def key_of(e):", f"    return {self.expression('e')}"]
        return compiled("key_of", lines, self.bindings)  # type: ignore[no-any-return]


def key_text(spec: KeySpec | None) -> str:
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


_NEVER_KEYS = (
    inspect.BoolType,
    inspect.FloatType,
    inspect.NoneType,
    inspect.DateType,
    inspect.TimeType,
    inspect.DateTimeType,
    inspect.TimeDeltaType,
    inspect.DecimalType,
    inspect.UUIDType,
    inspect.EnumType,
    inspect.DictType,
    inspect.SetType,
    inspect.FrozenSetType,
    inspect.StructType,
    inspect.DataclassType,
    inspect.TypedDictType,
)


def may_be_key(cls: type, attribute: str) -> bool:
    """Return True if a value of a field of an event class may be a key, or a part of one."""
    fields: Any = inspect.type_info(cls)
    (kind,) = [field.type for field in fields.fields if field.name == attribute]
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return not all(isinstance(each, _NEVER_KEYS) for each in kinds)


def compiled(
    name: str, lines: Sequence[str], bindings: dict[str, Any], *, shared: bool = False
) -> Any:
    """The function ``name`` defined by the source ``lines`` over ``bindings``.

    With ``shared`` it has the code of others with the same source, which saves to compile it.
    Python makes code fast for one user, so that is for functions that are called now and then.
    """
    scope, source = dict(bindings), "\n".join(lines)
    exec(_shared_code(name, source) if shared else _code(name, source), scope)  # noqa: S102 - our own source
    return scope[name]


def _code(name: str, source: str) -> CodeType:
    return compile(source, f"<s4node {name}>", "exec")


_shared_code = lru_cache(256)(_code)


def producer_rule(
    key: KeySpec | None, given: Iterable[type], types: Sequence[TypeDecl], named: str
) -> KeyRule | None:
    """The rule by which a producer with this ``key`` finds the keys of a stream of ``types``, whose
    own key is ``named``; None if there is no key, or the producer cannot find it. ``given`` are the
    classes that it has declared."""
    generic = [kind.name for kind in types] == [GENERIC]
    rule = None
    if key is not None:
        rule = KeyRule(key, generic=generic)
        if named and rule.name != named:
            rule = None
    if rule is None and named and named[0] not in "@?":
        key = tuple(named.split("+"))
        rule = KeyRule(key, generic=generic)
        for cls in given:  # classes of events may be declared later
            if cls is not GenericEvent and not all(hasattr(cls, a) for a in rule.attributes):
                return None  # the node reads a default there
    if rule is not None and not holds_keys(types, rule.attributes):
        assert key is not None
        return KeyRule(key, generic=generic, checked=True)
    return rule


class Router:
    """Finds the partitions of the events of a batch by their keys, in one compiled loop."""

    __slots__ = ("_note", "_place", "_rule", "_share", "partitions")

    def __init__(self, rule: KeyRule, partitioner: Partitioner) -> None:
        self.partitions = partitioner.partitions
        self._rule = rule
        partition = f"memo[{rule.expression('e')}]"
        lines = [
            "def share(it, appends):",
            "    for e in it:",
            f"        appends[{partition}](e)",
            "def place(it, append):",
            "    for e in it:",
            f"        append({partition})",
            "def note(it, sinks):",
            "    appends, note = sinks",
            "    for e in it:",
            f"        at = {partition}",
            "        appends[at](e)",
            "        note(at)",
            "loops = share, place, note",
        ]
        bindings = {**rule.bindings, "memo": partitioner.memo}
        self._share, self._place, self._note = compiled("loops", lines, bindings)

    def shares(
        self,
        events: Sequence[Any],
        most_failures: int = sys.maxsize,
        note: Callable[[int], None] | None = None,
    ) -> tuple[list[list[Any]], list[tuple[int, str]]]:
        """Events by partition, and ``(index, reason)`` of those without a key.

        Failures are slow, so routing stops after ``most_failures`` of them. ``note`` is called with
        the partition of each event.
        """
        lanes: list[list[Any]] = [[] for _ in range(self.partitions)]
        appends = [lane.append for lane in lanes]
        if note is not None:
            return lanes, self._run(self._note, events, (appends, note), most_failures)
        return lanes, self._run(self._share, events, appends, most_failures)

    def places(
        self, events: Sequence[Any], most_failures: int = sys.maxsize
    ) -> tuple[list[int], list[tuple[int, str]]]:
        """As ``shares``, but the partition of each event; -1 without a key."""
        found: list[int] = []
        failures = self._run(self._place, events, found.append, most_failures)
        if not failures:
            return found, failures
        places: list[int] = []
        at = 0
        for index, _ in failures:
            upto = at + index - len(places)
            places += found[at:upto]
            places.append(-1)
            at = upto
        return places + found[at:], failures

    def _run(
        self, loop: Callable[..., None], events: Sequence[Any], sink: Any, most_failures: int
    ) -> list[tuple[int, str]]:
        failures: list[tuple[int, str]] = []
        it = iter(events)
        while True:
            try:
                loop(it, sink)
            except BaseException as error:  # the app's KeyFinder may raise anything
                if is_signal(error):
                    raise
                failures.append((failed_at(it, len(events)), self._reason(error)))
                if len(failures) < most_failures:
                    continue
            return failures

    def _reason(self, error: BaseException) -> str:
        if self._rule.generic and isinstance(error, KeyError):
            return f"the event has no attribute {error}, which is the key of the stream"
        return key_failure(error)


def failed_at(it: Any, total: int) -> int:
    """The index of the event that a list iterator handed out last."""
    return total - length_hint(it) - 1


def key_failure(error: BaseException) -> str:
    """The reason why no key was found, from the KeyFinder's exception."""
    if isinstance(error, (KeyFinderError, EventTimeError)):
        return str(error)
    return f"the KeyFinder raised {described(error)}"


def is_generic(types: Sequence[type]) -> bool:
    """Return True if a stream of these types carries only GenericEvents."""
    return tuple(types) == (GenericEvent,)
