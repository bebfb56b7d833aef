"""The rows that a stage makes: what its PEs put on streams, their state, and refused events.

Rules
- An event that is put gets the order of the event that led to it, and a number among all that this
  event led to. So the next level can be sorted in turn.
- If the history is sorted by time, an event on a stream with time has its own time there; another
  one has that of the event that led to it, or that at which its window or timer was due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from operator import length_hint
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from s4node.app.app import App
from s4node.app.plan import graph
from s4node.app.plan.window_dispatch import time_rule
from s4node.app.stream import OutputStream, Stream
from s4node.errors import ProcessingError
from s4node.events.keys import identity
from s4node.spark.history.event_batches import packed
from s4node.spark.history.event_times import AT
from s4node.state import key_encoding

STATE, EVENT, REFUSED = "state", "event", "refused"
"""The kinds of rows that a stage makes: one of a task's database, an event that was put, and the
number of events without a key."""

PATH = "path"


def rows_of(order: Sequence[StructField]) -> StructType:
    """The rows of a stage. ``name`` is of the table or the stream, ``type`` the event's type in its
    stream, ``spot`` the key group of a row of state."""
    return StructType(
        [
            StructField("kind", StringType(), False),
            StructField("name", StringType(), False),
            StructField("type", IntegerType(), False),
            StructField("spot", IntegerType(), False),
            StructField("key", BinaryType(), False),
            *(StructField(each.name, each.dataType, True) for each in order),
            StructField(PATH, BinaryType(), False),
            StructField("value", BinaryType(), False),
        ]
    )


class Progress:
    """Where a stage is: the events ``it`` of a part, how many of them are left in the ``rest`` of
    their batch, how many events were put, and when the call that is being made was ``due``."""

    def __init__(self) -> None:
        self.it: Iterator[Any] = iter(())
        self.rest = 0
        self.count = 0
        self.due = 0.0

    def events_left(self) -> int:
        return length_hint(self.it) + self.rest


class _Put:
    """The events that are put on one stream, each with ``where`` that was, and its number."""

    def __init__(self, now: Progress, where: Callable[[], Any]) -> None:
        self._now = now
        self._where = where
        self._events: list[tuple[Any, Any, int]] = []

    def append(self, event: Any) -> None:
        now = self._now
        now.count += 1
        self._events.append((event, self._where(), now.count))

    def take(self) -> tuple[Sequence[Any], Sequence[Any], Sequence[int]]:
        """Take the events, where each was put, and their numbers."""
        taken, self._events = self._events, []
        return tuple(zip(*taken, strict=True)) if taken else ((), (), ())  # type: ignore[return-value]


class _Dropped:
    """Drops the events of a stream that is not kept."""

    def append(self, event: Any) -> None:
        """Drop it."""


class PutRows:
    """Makes rows of what PEs put on the ``wanted`` streams of ``app``; ``now`` is their progress.

    ``of_events`` and ``of_calls`` take what handlers put, and what windows and timers put.
    """

    def __init__(
        self, app: App, wanted: AbstractSet[str], order: Sequence[StructField], now: Progress
    ) -> None:
        self.schema = to_arrow_schema(rows_of(order), timezone="UTC")
        kept = [name in wanted for name in app.streams]
        of_events, of_call = now.events_left, lambda: now.due
        self.of_events: list[Any] = [_Put(now, of_events) if k else _Dropped() for k in kept]
        self.of_calls: list[Any] = [_Put(now, of_call) if k else _Dropped() for k in kept]
        self._app = app
        self._order = [each.name for each in order]
        by_time = self._order[:1] == [AT]
        self._rules = {s.name: time_rule(s) if by_time else None for s in app.streams.values()}
        self._finders = {
            stream.name: None if stream.key is None else graph.finder_of(stream)
            for stream in app.streams.values()
            if not isinstance(stream, OutputStream)
        }

    def put_by_handlers(
        self, total: int, order: Sequence[pa.Array], paths: list[bytes] | None
    ) -> Iterator[pa.RecordBatch]:
        """The events that handlers of ``total`` events have put, with their order and paths."""
        for stream, put in self._kept(self.of_events):
            events, rest, turn = put.take()
            if not events:
                continue
            places = [max(0, total - left - 1) for left in rest]
            led = [paths[place] for place in places] if paths else [b""] * len(places)
            columns = [column.take(pa.array(places)) for column in order]
            yield self._rows(stream, events, columns, led, turn)

    def put_by_calls(self) -> Iterator[pa.RecordBatch]:
        """The events that windows and timers have put."""
        for stream, put in self._kept(self.of_calls):
            events, due, turn = put.take()
            if not events:
                continue
            kinds = [self.schema.field(each).type for each in self._order]
            nulls = [pa.nulls(len(events), kind) for kind in kinds[1:]]
            columns = [pa.array(due, type=kinds[0]), *nulls]
            yield self._rows(stream, events, columns, [b""] * len(events), turn)

    def _kept(self, put: list[Any]) -> Iterator[tuple[Stream, _Put]]:
        for stream, each in zip(self._app.streams.values(), put, strict=True):
            if isinstance(each, _Put):
                yield stream, each

    def _rows(
        self,
        stream: Stream,
        events: Sequence[Any],
        order: list[pa.Array],
        led: list[bytes],
        turn: Sequence[int],
    ) -> pa.RecordBatch:
        rule = self._rules[stream.name]
        if rule is not None:
            order = [pa.array(map(rule.find, events), type=pa.float64()), *order[1:]]
        kinds = {kind.cls: number for number, kind in enumerate(stream.types)}
        columns = [
            pa.array([EVENT] * len(events)),
            pa.array([stream.name] * len(events)),
            pa.array([kinds[type(event)] for event in events], type=pa.int32()),
            pa.array([0] * len(events), type=pa.int32()),
            pa.array(self._keys(stream.name, events), type=pa.binary()),
            *order,
            pa.array(
                [path + count.to_bytes(6, "big") for path, count in zip(led, turn, strict=True)],
                type=pa.binary(),
            ),
            pa.array(packed(stream.types, events), type=pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _keys(self, name: str, events: Sequence[Any]) -> list[bytes]:
        find = self._finders.get(name)
        if find is None:
            return [b""] * len(events)
        keys: list[bytes] = []
        for event in events:
            try:
                keys.append(key_encoding.encode(identity(find(event))))
            except Exception as error:
                raise ProcessingError(
                    self._app.name, f"KeyFinder of {name!r}", None, f"{event!r}", error,
                    of_event=False,
                ) from error  # fmt: skip
        return keys
