"""Events written as records for other programs. Pure.

Rules
- The value has the fields of an event, in the format of the stream. The key of the stream is that
  of the record: text and bytes as they are, numbers as text, several parts as a JSON array.
- The settings that say into which field an input puts the time and the headers of a record say
  here where they come from. Headers are left out of the value.
- A Tombstone has a key and no value.
- An event that cannot be written is an error: it stops the task before the commit that would have
  it, so nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from s4node.config import plugins
from s4node.errors import ConfigError, EventError, described
from s4node.events.event import GenericEvent, Tombstone
from s4node.events.event_time import TimeRule
from s4node.events.keys import KeySpec, check_key, record_key
from s4node.events.routing import KeyRule
from s4node.events.schema import EventType
from s4node.offsets.system import OutputRecord
from s4node.systems.records import RecordFormat, fields_of

AT_ONCE_BYTES = 1 << 20
"""The bytes of records that are written at once, approximately."""

_encode_json = msgspec.json.Encoder().encode
_encode_msgpack = msgspec.msgpack.Encoder().encode


_Ways = tuple[Callable[[Any], Any], Callable[[Any], float], dict[str, str]]


class RecordWriter:
    """Makes records of the events of ``stream``, whose key is ``key``. A record takes at most
    ``most_bytes``, with its key."""

    def __init__(
        self, stream: str, form: RecordFormat, key: KeySpec | None, most_bytes: int
    ) -> None:
        self._stream = stream
        self._form = form
        self._key = key
        self._most_bytes = most_bytes
        self._value = _values_of(stream, form)
        self._ways: dict[type, _Ways] = {}

    def write(self, events: Sequence[Any], now_ms: int) -> list[OutputRecord]:
        """The records of the first events, until they have ``AT_ONCE_BYTES``; those without a time
        of their own get ``now_ms``.

        Raises EventError for an event that cannot be written.
        """
        records, size = list[OutputRecord](), 0
        for event in events:
            records.append(record := self._record(event, now_ms))
            size += len(record.value or b"") + len(record.key or b"")
            if size >= AT_ONCE_BYTES:
                break
        return records

    def _record(self, event: Any, now_ms: int) -> OutputRecord:
        try:
            if event.__class__ is Tombstone:
                return OutputRecord(self._stream, record_key(check_key(event.key)), None, now_ms)
            find_key, find_time, names = self._ways_of(event.__class__)
            key = None if self._key is None else record_key(check_key(find_key(event)))
            time = round(find_time(event) * 1000) if self._form.time else now_ms
            fields = fields_of(event)
            headers = self._headers(fields.pop(self._form.headers, None))
            if names:
                fields = {names[name]: field for name, field in fields.items()}
            value = self._value(event, fields)
        except Exception as error:  # of the author's key or format
            raise EventError(
                f"stream {self._stream!r}: {event!r:.500} cannot be written as a record: "
                f"{described(error)}"
            ) from error
        size = len(value) + len(key or b"")
        if size > self._most_bytes:
            raise EventError(
                f"stream {self._stream!r}: a record of {size} bytes with the key {key!r:.99} is "
                f"larger than {self._most_bytes} bytes; put smaller events, or raise "
                f"message.max.bytes of the system's producer and max.message.bytes of the topic"
            )
        return OutputRecord(self._stream, key, value, time, headers)

    def _ways_of(self, cls: type) -> _Ways:
        """The functions that find the key and the time of events of a class, and the names of its
        fields in values, if it renames any."""
        if cls not in self._ways:
            key: Callable[[Any], Any] = _nothing
            if self._key is not None:
                key = KeyRule(self._key, generic=cls is GenericEvent).finder()
            form = self._form
            rule = TimeRule(self._stream, form.time, [EventType(cls)]) if form.time else None
            known = () if cls is GenericEvent else msgspec.structs.fields(cls)
            names = {each.name: each.encode_name for each in known}
            renamed = names if any(name != names[name] for name in names) else {}
            self._ways[cls] = key, _nothing if rule is None else rule.find, renamed
        return self._ways[cls]

    def _headers(self, found: Any) -> Sequence[tuple[str, bytes]]:
        if not found:
            return ()
        if not isinstance(found, Mapping):
            raise EventError(f"{self._form.headers} = {found!r} is not a dict of headers")
        return [(name, text.encode() if isinstance(text, str) else text)
                for name, text in found.items()]  # fmt: skip


def _nothing(_: Any) -> Any:
    return None


def _values_of(stream: str, form: RecordFormat) -> Callable[[Any, dict[str, Any]], bytes]:
    """A function that encodes an event, given with its fields."""
    setting = f"streams.{stream}.samza.msg.serde"
    if form.serde == "json":
        return lambda _, fields: _encode_json(fields)
    if form.serde == "msgpack":
        return lambda _, fields: _encode_msgpack(fields)
    if form.serde == "bytes":
        return _raw
    serde = plugins.made(form.serde, setting, "format")
    plugins.lacking(serde, ("encode",), form.serde, setting, "format")

    def own(event: Any, _: dict[str, Any]) -> bytes:
        value = serde.encode(event)
        if not isinstance(value, bytes):
            raise ConfigError(f"{form.serde}.encode returned {type(value).__name__}, not bytes")
        return value

    return own


def _raw(_: Any, fields: dict[str, Any]) -> bytes:
    value = fields.get("value")
    if not isinstance(value, bytes):
        raise EventError(f"its field value has {value!r}; the format bytes needs bytes there")
    return value
