"""Dead letters: events that could not be processed, as they stand in the dead letter stream.
Pure.

Rules
- A dead letter says where the event was (``system``, ``stream``, ``partition``, ``offset``, and by
  name what that counts in: ``origin``), why it is here (``reason``), and has its bytes (``raw``).
- Where the event was decoded ``raw`` is an array of one, and ``type`` and ``fields`` say how it is
  to be read, so that it can be shown and sent again by who does not have the app's classes.
- Where a handler has failed there are the ``pe`` (or task), the ``key`` and the ``trace``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from s4node.events.event import GenericEvent
from s4node.events.schema import EventType

Home = tuple[str, str, int]
"""System, stream and partition that an event came from."""


def dead_letter(
    home: Home,
    origin: str,
    offset: int,
    reason: str,
    event: Any,
    more: Mapping[str, Any] | None = None,
) -> GenericEvent:
    """Make the dead letter of an event; ``event`` is its bytes if it does not decode."""
    system, stream, partition = home
    place = {
        "system": system,
        "stream": stream,
        "partition": partition,
        "offset": offset,
        "origin": origin,
    }
    if isinstance(event, bytes):
        return GenericEvent(**place, reason=reason, raw=event)
    kind = EventType(type(event))
    fields = [list(field) for field in kind.declaration.fields]
    return GenericEvent(
        **place,
        reason=reason,
        raw=kind.encode([event]),
        type=kind.name,
        fields=fields,
        **(more or {}),
    )


def raw_of(event: Any) -> bytes:
    """An event as bytes: an array of one."""
    cls: type = type(event)
    return _type_of(cls).encode([event])


@lru_cache(maxsize=256)
def _type_of(cls: type) -> EventType:
    """The type of events of a class, which takes long to make."""
    return EventType(cls)
