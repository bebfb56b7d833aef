"""The types of the events that a producer puts on a stream. Pure.

Rules
- Types are announced to nodes before their first event.
- If a node has listed the types that the stream accepts, events of other types are rejected with
  the node's own reason, also if their class was declared before.
- As long as there are frames of an earlier life, the types of those frames are announced, too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from s4node.errors import EventError
from s4node.events.copies import copier_of
from s4node.events.declared_types import key_of_texts
from s4node.events.keys import KeySpec
from s4node.events.routing import KeyRule, producer_rule
from s4node.events.schema import EventType, JsonText, JsonType, misfit
from s4node.events.type_declaration import TypeDecl
from s4node.net.wire import frame as wire


class StreamTypes:
    """The types of ``stream``: ``kinds`` can be encoded; ``rejected`` are refused, with a reason.

    ``given`` were declared before any event. ``taken`` are the types that the stream accepts; None
    if unknown, or if it accepts any. ``versions`` are types of earlier lives, by fingerprint.
    ``checked``: who takes the events stores them without reading them, so their values are checked.
    """

    def __init__(self, stream: str, types: Sequence[type] = (), *, checked: bool = False) -> None:
        self.kinds: dict[type, EventType | JsonType] = {}
        self.changing: set[type] = set()  # classes of events that can change
        self.rejected: dict[type, str] = {}
        self.taken: Sequence[TypeDecl] | None = None
        self.versions: dict[int, TypeDecl] = {}
        self.given = tuple(types)
        self.checked = checked
        self.of_log = False
        self._by_key = False
        self.stream = stream
        for cls in types:
            self.declare(cls)

    def declare(self, cls: type) -> None:
        """Declare ``cls``; its events are rejected if the stream accepts only other types."""
        if cls in self.kinds or cls in self.rejected:
            return
        kind = EventType(cls)
        reason = "" if self.taken is None else self._misfit(kind, self.taken)
        if reason:
            self.rejected[cls] = reason
        else:
            self.kinds[cls] = kind
            if copier_of(cls) is not None:
                self.changing.add(cls)

    def key_rule(
        self, key: KeySpec | None, taken: Sequence[TypeDecl], named: str
    ) -> KeyRule | None:
        """The rule by which the keys of the events are found; None if there is none. ``taken`` are
        the types of the stream, whose key is ``named``."""
        texts = self.kinds.get(JsonText)
        if texts is None:
            return producer_rule(key, self.given, taken, named)
        return key_of_texts(texts.declaration, named) if self._by_key else None

    def declare_json(self, declaration: TypeDecl, *, by_key: bool = False) -> None:
        """Have the node read JsonText as its type ``declaration``, and route it ``by_key``."""
        if self.kinds.keys() - {JsonText}:
            raise EventError(f"stream {self.stream!r} already carries events that are not texts")
        self.kinds[JsonText] = JsonType(declaration)
        self._by_key = by_key

    def take_answer(self, answer: wire.Hello, *, takes_any: bool) -> None:
        """Take the types that a node accepts; a log stores any, without reading them."""
        self.of_log = bool(answer.headers.get(wire.LOG))
        self.taken = None if self.of_log or takes_any else answer.types
        self.renew_json(answer.types)

    def renew_json(self, announced: Sequence[TypeDecl]) -> None:
        """Update the type of texts, of which a restarted node may have another version."""
        if JsonText in self.kinds:
            for declared in announced:
                if declared.name == self.kinds[JsonText].name:
                    self.kinds[JsonText] = JsonType(declared)

    def reject_unfit(self, taken: Sequence[TypeDecl]) -> None:
        """Reject types learned from events that a node which accepts ``taken`` cannot read."""
        for cls in [cls for cls in self.kinds if cls not in self.given]:
            reason = self._misfit(self.kinds[cls], taken)
            if reason:
                self.reject((cls,), reason)

    def unfit(self, classes: Collection[type], taken: Sequence[TypeDecl]) -> list[type]:
        """The ``classes`` that a node which accepts ``taken`` cannot read."""
        return [cls for cls in classes if self._misfit(self.kinds[cls], taken)]

    def reject(self, classes: Collection[type], reason: str) -> None:
        self.rejected |= dict.fromkeys(classes, reason)
        for cls in classes:
            self.kinds.pop(cls, None)

    @property
    def declarations(self) -> tuple[TypeDecl, ...]:
        """The declarations that a node needs to read our events."""
        ours = {
            kind.fingerprint: kind.declaration
            for kind in self.kinds.values()
            if kind.encoding == wire.MSGPACK
        }
        return tuple((self.versions | ours).values()) if self.versions else tuple(ours.values())

    def name_of(self, event: Any) -> str:
        return self.kinds[type(event)].name

    def _misfit(self, kind: EventType | JsonType, taken: Sequence[TypeDecl]) -> str:
        by_name = {declared.name: declared for declared in taken}
        return misfit(self.stream, by_name, kind.declaration)
