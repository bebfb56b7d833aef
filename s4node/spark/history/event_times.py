"""The time of a history's events: a column to sort by, and the watermarks at its end.

Rules
- If an app has windows or timers by the time of events, its whole history is run in the order of
  that time. Then no event is late, and nothing has to be held in memory for long.
- At the end the watermark of an input is that of its slowest source: of the partitions of a log, or
  of a history that is files. It is the same for all tasks, and never later than on a node, whose
  tasks may each be further. So nodes end the windows between the two when they start.
- A partition of a log to which nothing was appended for as long as a source may be idle is left
  out, unless that is so of all.
- What PEs put is at the lowest watermark of the streams from which it is put, as on a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f
from pyspark.sql.types import IntegralType, NumericType, TimestampType

from s4node.app.app import App
from s4node.app.plan import dataflow
from s4node.app.stream import InputStream, OutputStream, Stream
from s4node.events.event_time import MOST_AHEAD, SECONDS_AT_MOST
from s4node.offsets.system import SystemStreamPartition
from s4node.runtime.event_time.put_times import feeders_in
from s4node.runtime.event_time.saved_times import reached_times
from s4node.spark.columns import PARTITION, TIME

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

AT = "_at"
"""The column with the time of an event, in seconds."""

FILES = -1
"""Stands for the partition of a history that is files."""


@dataclass(frozen=True)
class EventTimes:
    """How far the streams of an app are at the end of a history.

    ``watermarks`` are by stream; ``read`` has the time of each partition of a log, by stream;
    ``puts`` are the times of what is put from now on, by stream.
    """

    watermarks: Mapping[str, float] = field(default_factory=dict)
    read: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    puts: Mapping[str, float] = field(default_factory=dict)

    def until(self, app: App) -> dict[str, float]:
        """The last watermark of each PE, of the streams that lead to it."""
        found = {}
        for name, (prototype, _) in app.prototypes.items():
            streams = (s.name for s in app.streams.values() if prototype in s.targets)
            value = _lowest(self.watermarks, streams)
            if value is not None:
                found[name] = value
        return found

    def saved(self, app: App, ssps: Iterable[SystemStreamPartition]) -> Any:
        """The fact with the watermarks of a task that reads these partitions."""
        read: dict[str, dict[str, float]] = {}
        for each in ssps:
            time = self.read.get(each.stream, {}).get(each.partition)
            if time is not None:
                read.setdefault(each.stream, {})[str(each)] = time
        until = self.until(app)
        windows = {n: until[n] for n, (p, _) in app.prototypes.items() if p.windows and n in until}
        return reached_times(self.watermarks, read, windows, self.puts)


def with_time(df: DataFrame, stream: Stream, now: float) -> DataFrame:
    """The history of a stream with the column ``AT``; null for what is no time ``now``."""
    return df.withColumn(AT, _seconds(df, stream, now))


def _seconds(df: DataFrame, stream: Stream, now: float) -> Column:
    none = f.lit(None).cast("double")
    if stream.time is None:
        return none
    field, event = stream.time.field, stream.types[0]
    if (name := event.encoded(field)) not in df.columns:
        return none
    column, kind = f.col(f"`{name}`"), df.schema[name].dataType
    if not isinstance(kind, (NumericType, TimestampType)):
        return none
    at = column.cast("double")
    if (event.kind_of(field) or ("int" if isinstance(kind, IntegralType) else "")) == "int":
        at = f.when(column >= SECONDS_AT_MOST, at / 1000)
    return f.when((at > 0) & (at <= now + MOST_AHEAD), at)


def event_times(
    app: App, histories: Mapping[str, DataFrame], logs: Iterable[str], now: float
) -> EventTimes:
    """How far the streams of an app are after histories with the column ``AT``."""
    watermarks: dict[str, float] = {}
    read: dict[str, dict[int, float]] = {}
    for name, df in histories.items():
        time = app.streams[name].time
        if time is None:
            continue
        sources, active = _sources(df, name in logs, now - time.idle)
        if sources:
            watermarks[name] = min(active.values()) - time.lateness
            read[name] = sources
    edges = dataflow.edges(app)
    timed = [s.name for s in app.streams.values() if s.time and not isinstance(s, OutputStream)]
    feeders = feeders_in(app, edges, timed)
    hops = dataflow.hops(edges)
    puts = {}
    for name in sorted(feeders, key=hops.__getitem__):
        put, time = _lowest(watermarks, feeders[name]), app.streams[name].time
        if put is None:
            continue
        puts[name] = put
        if time is not None and not isinstance(app.streams[name], (InputStream, OutputStream)):
            watermarks[name] = put - time.lateness
    return EventTimes(watermarks, read, puts)


def _sources(
    df: DataFrame, of_log: bool, idle_since: float
) -> tuple[dict[int, float], dict[int, float]]:
    """The latest time of each source, and those of the sources that are waited for."""
    partition = f.col(PARTITION) if of_log else f.lit(FILES)
    appended = f.unix_micros(TIME) / 1e6 if of_log else f.lit(idle_since)
    rows = (
        df.where(f.col(AT).isNotNull())
        .groupBy(partition.alias("source"))
        .agg(f.max(AT).alias("at"), f.max(appended).alias("appended"))
        .collect()
    )
    sources = {row["source"]: row["at"] for row in rows}
    active = {row["source"]: row["at"] for row in rows if row["appended"] >= idle_since}
    return sources, active or sources


def _lowest(watermarks: Mapping[str, float], streams: Iterable[str]) -> float | None:
    """The lowest watermark of these streams, without those that have had no event."""
    return min((watermarks[name] for name in streams if name in watermarks), default=None)
