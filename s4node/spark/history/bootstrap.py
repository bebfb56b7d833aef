"""Runs an app's PEs over history on Spark; the result is a savepoint from which nodes go on.

Rules
- Each level of the app's graph is one stage: events are shuffled by key, sorted, and handled by the
  app's own classes. The rows of a level are written once, and all later levels read the same rows,
  even if Spark runs one of its stages again.
- The history of an input that is read from a log is the log itself, up to offsets that are noted
  before anything is read. Nodes go on at these offsets: no event is missed or counted twice.
- If the app has windows or timers by the time of events, all is sorted by that time first, and the
  watermarks at the end of the history are derived before the first stage; see ``event_times``.
- All parts of the app that do not fit are reported before the first stage.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import functions as f
from pyspark.sql.types import DoubleType, StructField, StructType

from s4node import clocks, tokens
from s4node.app.app import App
from s4node.app.stream import OutputStream
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError, ConnectionRefused, GraphError
from s4node.events.schema import EventType
from s4node.net.certificates.credentials import OPTIONS, Credentials
from s4node.runtime.inputs.binding import replayable
from s4node.spark.addresses import listed
from s4node.spark.connection import NoAnswerError, ask
from s4node.spark.history import stages as app_stages
from s4node.spark.history.event_batches import Columns, columns_of, misfits
from s4node.spark.history.event_times import AT, EventTimes, event_times, with_time
from s4node.spark.history.log_order import OF_LOG
from s4node.spark.history.replay import AppSource, Encoding, Replay
from s4node.spark.history.stage_rows import EVENT, PATH, REFUSED, rows_of
from s4node.spark.history.stages import Stage
from s4node.spark.history.task_writer import Reached
from s4node.spark.positions import Position, Positions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PATIENCE = 30.0  # the seconds in which a log has to answer
_LOOKS = 16  # tasks that look at the folder for stages


@dataclass
class Bootstrapped:
    """The state of an app after its history, in ``rows``, which Spark reads from ``folder``.

    ``positions`` are where nodes go on, by stream; ``counts`` are the partitions of inputs that are
    read from a system; ``times`` are how far streams with time are. ``refused`` events had no key
    or time, and ``why`` is why the first one had none. ``left_out`` says what did not happen. Close
    it when its DataFrames are no longer needed.
    """

    app: App
    source: AppSource
    rows: DataFrame
    order: StructType
    folder: Path
    positions: Mapping[str, Positions] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    times: EventTimes = field(default_factory=EventTimes)
    refused: int = 0
    why: str = ""
    left_out: Sequence[str] = ()

    def output(self, stream: str) -> DataFrame:
        """The events that PEs have put on an output stream that was kept, in order."""
        kind = self.app.streams[stream].types[0]
        rows = self.rows.where((f.col("kind") == EVENT) & (f.col("name") == stream))
        names = [each.name for each in self.order.fields]
        ordered = rows.repartition("key").sortWithinPartitions(*names, PATH)
        return ordered.select("value").mapInArrow(Columns(kind.cls), columns_of(kind))

    def close(self) -> None:
        """Remove what the stages have written."""
        shutil.rmtree(self.folder, ignore_errors=True)


def history_of_log(
    spark: SparkSession, address: str, stream: str, kind: EventType, config: Config
) -> tuple[DataFrame, Positions]:
    """All that a log has of a stream now, and the positions at which that ends."""
    end = {
        number: Position(each["upcoming"], each["epochs"][-1][0] if each["epochs"] else 0)
        for number, each in enumerate(_partitions(address, stream, config))
    }
    offsets = msgspec.json.encode({str(number): at.offset for number, at in end.items()}).decode()
    cls = kind.cls
    df = (
        spark.read.format("s4")
        .option("address", address)
        .option("stream", stream)
        .option("type", f"{cls.__module__}:{cls.__qualname__}")
        .option("end", offsets)
        .options(**{e.name: e.text for e in config.items() if e.name in OPTIONS and e.text})
        .load()
    )
    return df, end


def bootstrap(
    spark: SparkSession,
    app: Any,
    histories: Mapping[str, Any],
    *,
    order: Sequence[str] = OF_LOG,
    config: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
    work: str = "",
    report: Callable[[str], None] = lambda _: None,
) -> Bootstrapped:
    """Run ``app``, a class or ``package.module:App``, over its ``histories``.

    ``histories`` has a DataFrame for an input stream, or the address of the log that has it.
    ``order`` are the columns by which a key's events are sorted: a time, and what breaks ties.
    ``config`` are the settings of the nodes. Events on the output streams ``keep`` are kept. What
    stages make is written to a new folder in ``work``, which the driver and all executors have to
    reach; it may be left out if they are on one machine. ``report`` gets a line for what does not
    happen, and for each stage. Raises GraphError with all that does not fit.
    """
    _check_work(spark, work)
    values = dict(config or {})
    given = Config.from_values(values)
    tasks = given[settings.CLUSTER_PARTITIONS]
    if given[settings.HASHER] == "kafka":
        raise ConfigError(
            f"{settings.HASHER.name} = kafka: Spark divides the state among tasks by key groups, "
            f"and Kafka's producers do not. Use another hasher, without streams.<stream>.routed"
        )
    source = AppSource(app, values, tasks)
    made = source.made()
    _check(made, tasks, histories, keep)
    left_out = app_stages.left_out(made, histories)
    for line in left_out:
        report(line)
    frames: dict[str, DataFrame] = {}
    positions: dict[str, Positions] = {}
    for name, history in histories.items():
        if isinstance(history, str):
            kind = made.streams[name].types[0]
            frames[name], positions[name] = history_of_log(
                spark, history, name, kind, Config.from_values(values)
            )
        else:
            frames[name] = history
            bad = misfits(made.streams[name].types[0], history.schema)
            if bad:
                raise ConfigError(
                    f"the history of {name!r} does not fit: {'; '.join(bad)}. Select or cast the "
                    f"columns",
                    tuple(bad),
                )
    fields, times, now = _order(frames, order), EventTimes(), clocks.wall()
    if app_stages.has_time(made):
        frames = {name: with_time(df, made.streams[name], now) for name, df in frames.items()}
        fields = StructType([StructField(AT, DoubleType()), *fields])
        times = event_times(made, frames, positions, now)
    counts = _counts(made, Config.from_values(values), positions)
    folder = Path(work or tempfile.gettempdir()).absolute() / f"s4-bootstrap-{tokens.fresh(10)}"
    folder.mkdir(0o777 if work else 0o700, parents=True)
    try:
        made_by = partial(Replay, source, order=fields, until=times.until(made), now=now)
        rows = _Levels(
            spark, source, made, frames, fields, set(keep), folder, report, made_by
        ).run()
        found = Bootstrapped(
            made, source, rows, fields, folder, positions, counts, times, left_out=left_out
        )
        for row in rows.where(f.col("kind") == REFUSED).select("value").collect():
            count, why = msgspec.msgpack.decode(row["value"])
            found.refused += count
            found.why = found.why or why
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return found


def _check_work(spark: SparkSession, work: str) -> None:
    """Raise ConfigError unless executors write to the folder in which the driver reads."""
    master = spark.conf.get("spark.master", "local") or "local"
    if master.startswith("local"):
        return
    if not work:
        raise ConfigError(
            f"Spark runs on other machines ({master}), and no folder is named in which stages "
            f"write; name one that the driver and all executors reach, such as a mounted one, with "
            f"work (--work)"
        )
    place = Path(work).absolute() / f"s4-reached-{tokens.fresh(10)}"
    try:
        place.mkdir(0o777, parents=True)
        spark.range(0, _LOOKS, 1, _LOOKS).mapInArrow(Reached(str(place)), "seen int").collect()
        if len(list(place.iterdir())) < _LOOKS:
            raise ConfigError(
                f"what executors write to {work} is not in that folder of the driver's machine; "
                f"name a folder that is the same on all machines with work (--work)"
            )
    except OSError as error:
        raise ConfigError(
            f"the folder for stages (work, --work) cannot be used: {error}"
        ) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _check(app: App, tasks: int, histories: Mapping[str, Any], keep: Sequence[str]) -> None:
    problems = app_stages.refused(app, tasks, histories)
    outputs = {s.name: s for s in app.streams.values() if isinstance(s, OutputStream)}
    for name in keep:
        if name not in outputs:
            problems.append(f"it has no output stream {name!r}; it has {', '.join(outputs)}")
        elif len(outputs[name].types) != 1:
            problems.append(f"output stream {name!r} does not declare one type (types=...)")
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise GraphError(f"app {app.name!r} cannot run over a history:\n{listed}")


def _counts(app: App, config: Config, known: Mapping[str, Positions]) -> dict[str, int]:
    """The number of partitions of each input that is read from a system."""
    addresses = config.matching(settings.SYSTEM_ADDRESS)
    found = {name: len(each) for name, each in known.items()}
    for stream in replayable(app):
        if stream.name in found:
            continue
        if stream.system not in addresses:
            raise ConfigError(
                f"{stream.system}.{stream.name} has no address, so its partitions are not known; "
                f"set systems.{stream.system}.address"
            )
        found[stream.name] = len(_partitions(addresses[stream.system], stream.name, config))
    return found


def _partitions(address: str, stream: str, config: Config) -> list[dict[str, Any]]:
    credentials = Credentials.configured(config)
    try:
        found = ask(listed(address), _PATIENCE, "describe", credentials=credentials, stream=stream)
    except NoAnswerError as error:
        raise ConnectionRefused(
            f"{error.fact}; start the node of the log that has {stream!r}, or correct its address, "
            f"which is {address}"
        ) from error
    partitions: list[dict[str, Any]] = found["partitions"]
    return partitions


def _order(frames: Mapping[str, DataFrame], order: Sequence[str]) -> StructType:
    """The fields by which all histories are sorted; raises ConfigError."""
    fields: list[Any] = []
    for name, df in frames.items():
        missing = [each for each in order if each not in df.columns]
        if missing:
            raise ConfigError(
                f"the history of {name!r} has no column {', '.join(missing)} to be sorted by; "
                f"name a time and what breaks ties with order, of {', '.join(df.columns)}"
            )
        mine = [df.schema[each] for each in order]
        if fields and [each.dataType for each in mine] != [each.dataType for each in fields]:
            raise ConfigError(f"the histories have {', '.join(order)} of different types")
        fields = mine
    return StructType(fields)


class _Levels:
    def __init__(
        self,
        spark: SparkSession,
        source: AppSource,
        app: App,
        frames: Mapping[str, DataFrame],
        order: StructType,
        keep: set[str],
        work: Path,
        report: Callable[[str], None],
        replay: Callable[..., Replay],
    ) -> None:
        self._spark = spark
        self._source = source
        self._app = app
        self._frames = frames
        self._order = order
        self._names = [each.name for each in order.fields]
        self._keep = keep
        self._read: set[str] = set()  # streams of earlier stages
        self._work = work
        self._report = report
        self._replay = replay
        self._schema = rows_of(order.fields)

    def run(self) -> DataFrame:
        stages = app_stages.stages(self._app)
        inner = {name for stage in stages for name in stage.streams} - set(self._frames)
        written: list[DataFrame] = []
        for number, stage in enumerate(stages):
            self._report(f"stage {number + 1} of {len(stages)}: {', '.join(stage.pes)}")
            place = str(self._work / f"stage-{number}")
            rows = self._stage(stage, written, frozenset(inner | self._keep))
            self._read |= {*stage.streams}
            if rows is None:
                continue
            rows.write.mode("overwrite").parquet(place)
            written.append(self._spark.read.schema(self._schema).parquet(place))
        found = self._spark.createDataFrame([], self._schema)
        for each in written:
            found = found.unionByName(each)
        return found

    def _stage(
        self, stage: Stage, written: Sequence[DataFrame], wanted: frozenset[str]
    ) -> DataFrame | None:
        """The rows that a stage makes; None if nothing leads to it."""
        column = self._column_stream(stage)
        replay = self._replay(stage, wanted=wanted, columns=column)
        if column:
            df = self._frames[column]
            keys = self._key_columns(column)
            placed = df.repartition(1) if stage.single else df.repartition(*keys)
            return placed.sortWithinPartitions(*self._names).mapInArrow(replay, self._schema)
        mine = [name for name in stage.streams if name in self._frames]
        parts = [self._encoded(name) for name in mine] + [
            each.where((f.col("kind") == EVENT) & f.col("name").isin(list(stage.streams)))
            for each in written
        ]
        if not parts:
            return None
        rows = parts[0]
        for each in parts[1:]:
            rows = rows.unionByName(each)
        placed = rows.repartition(1) if stage.single else rows.repartition("key")
        return placed.sortWithinPartitions(*self._names, PATH).mapInArrow(replay, self._schema)

    def _column_stream(self, stage: Stage) -> str:
        """The one history that a stage reads, if its key is columns; else empty."""
        if len(stage.streams) != 1 or stage.streams[0] not in self._frames:
            return ""
        name = stage.streams[0]
        return name if stage.single or self._key_columns(name) else ""

    def _key_columns(self, name: str) -> Sequence[str]:
        from s4node.app.plan.graph import rule_of

        rule = rule_of(self._app.streams[name])
        columns = self._frames[name].columns
        if rule is None or not rule.attributes or not set(rule.attributes) <= set(columns):
            return ()
        return rule.attributes

    def _encoded(self, name: str) -> DataFrame:
        """The history of a stream as rows; the events without a key are counted only once."""
        encode = Encoding(self._source, name, self._order)
        rows = self._frames[name].mapInArrow(encode, self._schema)
        return rows.where(f.col("kind") == EVENT) if name in self._read else rows
