"""The event types of what a producer puts on a stream. Pure.

Rules
- Nodes hear of a type before its first event.
- Where somebody has said which types the stream takes, and takes no others, events of others are
  rejected, with the same word that the node would use; also those of classes that became known
  before that was said.
- As long as there are frames of an earlier life, the types that they were written with are told,
  too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from s4node.errors import EventError
from s4node.events.schema import EventType, JsonText, JsonType, TypeDecl, misfit
from s4node.net.wire import frame as wire


class StreamTypes:
    """Those of ``stream``: ``kinds`` can be encoded, ``rejected`` are not taken, and why not.

    ``given`` are those that were declared before there was any event.
    ``taken`` are the only ones that the stream takes; None where that is not known, or it takes
    any. ``versions`` are those of earlier lives, by fingerprint.
    """

    def __init__(self, stream: str, types: Sequence[type] = ()) -> None:
        self.kinds: dict[type, EventType | JsonType] = {}
        self.rejected: dict[type, str] = {}
        self.taken: Sequence[TypeDecl] | None = None
        self.versions: dict[int, TypeDecl] = {}
        self.given = tuple(types)
        self.stream = stream
        for cls in types:
            self.declare(cls)

    @property
    def known(self) -> Collection[type]:
        """The event classes that can be encoded."""
        return self.kinds.keys()

    def declare(self, cls: type) -> None:
        """Make ``cls`` known; nodes hear of it before its first event.

        Its events are refused where a node has said that the stream takes others.
        """
        if cls in self.kinds or cls in self.rejected:
            return
        kind = EventType(cls)
        reason = "" if self.taken is None else self._misfit(kind, self.taken)
        if reason:
            self.rejected[cls] = reason
        else:
            self.kinds[cls] = kind

    def declare_json(self, declaration: TypeDecl) -> None:
        """JsonText is to be read as the node's type ``declaration``."""
        if self.kinds.keys() - {JsonText}:
            raise EventError(f"stream {self.stream!r} already carries events that are no texts")
        self.kinds[JsonText] = JsonType(declaration)

    def renew_json(self, told: Sequence[TypeDecl]) -> None:
        """The node may have come back with another version of the type that texts are read as."""
        if JsonText in self.kinds:
            for declared in told:
                if declared.name == self.kinds[JsonText].name:
                    self.kinds[JsonText] = JsonType(declared)

    def reject_unfit(self, taken: Sequence[TypeDecl]) -> None:
        """Reject those of events that a node which takes these types cannot read."""
        for cls in [cls for cls in self.kinds if cls not in self.given]:
            reason = self._misfit(self.kinds[cls], taken)
            if reason:
                self.reject((cls,), reason)

    def unfit(self, classes: Collection[type], taken: Sequence[TypeDecl]) -> list[type]:
        """Those of ``classes`` that a node which takes these types cannot read."""
        return [cls for cls in classes if self._misfit(self.kinds[cls], taken)]

    def reject(self, classes: Collection[type], reason: str) -> None:
        """The node does not take events of these classes."""
        self.rejected |= dict.fromkeys(classes, reason)
        for cls in classes:
            self.kinds.pop(cls, None)

    @property
    def declarations(self) -> tuple[TypeDecl, ...]:
        """What a node must know to read our events."""
        ours = {
            kind.fingerprint: kind.declaration
            for kind in self.kinds.values()
            if kind.encoding == wire.MSGPACK
        }
        return tuple((self.versions | ours).values()) if self.versions else tuple(ours.values())

    def name_of(self, event: Any) -> str:
        """What its type is called."""
        return self.kinds[type(event)].name

    def _misfit(self, kind: EventType | JsonType, taken: Sequence[TypeDecl]) -> str:
        by_name = {declared.name: declared for declared in taken}
        return misfit(self.stream, by_name, kind.declaration)
