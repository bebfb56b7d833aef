"""Dead letters: the records of events that could not be processed. Pure.

Rules
- A dead letter has the event's place (``system``, ``stream``, ``partition``, ``offset``, and the
  ``origin`` in which the offset counts), the ``reason``, and the event's bytes (``raw``).
- If the event was decoded, ``raw`` is an array of one event, and ``type`` and ``fields`` describe
  it, so that a program without the app's classes can show it and send it again.
- If a handler failed, the dead letter has the ``pe`` (or task), the ``key`` and the ``trace``.
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
    """Make the dead letter of an event; ``event`` is bytes if it does not decode."""
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
    """Encode an event as an array of one."""
    cls: type = type(event)
    return _type_of(cls).encode([event])


@lru_cache(maxsize=256)
def _type_of(cls: type) -> EventType:
    """The type of a class; cached because making one is slow."""
    return EventType(cls)
