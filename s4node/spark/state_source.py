"""Reads the state of PEs and stores in a savepoint into a DataFrame: option ``state``.

Rules
- A savepoint never changes, so a task of Spark that runs again reads the same. There is a read task
  for each task of the app, and the savepoint's folder or URL has to be reachable from it.
- A PE has the column ``key`` and one for each attribute, as of the class that wrote the newest
  instance. A store has ``key`` and ``value``, as JSON text. Keys of several parts are structs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import CheckpointError, ConfigError
from s4node.events.keys import crc32m
from s4node.savepoints.manifest import Manifest
from s4node.savepoints.place import SavepointPlace
from s4node.savepoints.shipped import savepoints_of
from s4node.spark.columns import kind_of
from s4node.spark.shipped import Shipped
from s4node.state import epochs
from s4node.state.browse import StateReader
from s4node.state.database import Database
from s4node.state.job import folder_of, named_folder
from s4node.state.remote_job import remote_job_of
from s4node.state.task_state import TaskState

_KNOWN = {"state", "savepoint", "folder", "url", "cluster", "path"}
_ROWS = 16_384
_CONVERTED = {
    TimestampType: datetime,
    DateType: date,
    DecimalType: Decimal,
    DayTimeIntervalType: timedelta,
}
_KEYS: dict[type, DataType] = {str: StringType(), int: LongType(), bytes: BinaryType()}

_json = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Wanted:
    """The PE or store ``name`` of a savepoint of ``app``, with the settings of its job."""

    app: str
    settings: Mapping[str, str]
    savepoint: str
    name: str

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Wanted:
        """The state that ``options`` ask for; raises ConfigError."""
        unknown = sorted(options.keys() - _KNOWN)
        if unknown:
            raise ConfigError(
                f"format('s4') does not know the option {unknown[0]!r} for reading state; it knows "
                f"state, savepoint, folder, url and cluster"
            )
        app, slash, name = options["state"].partition("/")
        if not (app and slash and name):
            raise ConfigError(
                f"option state={options['state']!r} is not APP/PE or APP/STORE, such as "
                f"flights/carrier"
            )
        places = {
            settings.STATE_FOLDER.name: options.get("folder"),
            settings.STATE_URL.name: options.get("url"),
            settings.CLUSTER_NAME.name: options.get("cluster"),
        }
        given = {key: value for key, value in places.items() if value}
        found = cls(app, given, options.get("savepoint", ""), name)
        return found if found.savepoint else replace(found, savepoint=found._newest())

    def _newest(self) -> str:
        place = self.place
        found, _ = place.look()
        if not found:
            raise CheckpointError(
                f"app {self.app!r} has no savepoint in {place.name}; take one: "
                f"s4 savepoint take {self.app}"
            )
        return found[-1].name

    @property
    def place(self) -> SavepointPlace:
        config = Config.from_values(self.settings)
        job = folder_of(config[settings.STATE_FOLDER], config[settings.CLUSTER_NAME], self.app)
        return savepoints_of(job, remote_job_of(config, job))

    @property
    def manifest(self) -> Manifest:
        return self.place.manifest_of(self.savepoint)

    @contextmanager
    def opened(self, task: str) -> Iterator[TaskState]:
        """The state of a task in the savepoint, copied by hard links."""
        manifest = self.manifest
        one = msgspec.structs.replace(manifest, tasks={task: manifest.tasks[task]})
        with (
            self.place.opened(one) as place,
            tempfile.TemporaryDirectory(prefix="s4-look-") as room,
        ):
            epochs.inherit(named_folder(place, task), Path(room))
            database = Database(Path(room))
            try:
                yield TaskState(database, crc32m)
            finally:
                database.close()


def schema(options: Mapping[str, str]) -> StructType:
    wanted = Wanted.of(options)
    pes: set[str] = set()
    stores: set[str] = set()
    fields: Sequence[tuple[str, str]] = ()
    key: Any = None
    found = False
    for task in wanted.manifest.tasks:
        with wanted.opened(task) as state:
            reader = StateReader(state)
            pes.update(reader.elements)
            stores.update(reader.stores)
            versions = state.meta(f"versions of {wanted.name}") or ()
            if versions and wanted.name in reader.elements:
                fields = versions[-1]
            if not found:
                for first, _ in islice(_rows(reader, wanted.name), 1):
                    key, found = first, True
    if wanted.name not in pes | stores:
        raise ConfigError(
            f"savepoint {wanted.savepoint!r} has no PE or store {wanted.name!r}; it has "
            f"{', '.join(sorted(pes | stores)) or 'none'}"
        )
    columns = [] if found and key is None else [StructField("key", _key_type(key), True)]
    if wanted.name in pes:
        columns += [StructField(name, kind_of(text).spark, True) for name, text in fields]
    else:
        columns.append(StructField("value", StringType(), True))
    return StructType(columns)


def _key_type(key: Any) -> DataType:
    if isinstance(key, tuple):
        return StructType(
            [StructField(f"_{n}", _KEYS[type(part)], True) for n, part in enumerate(key, 1)]
        )
    return _KEYS.get(type(key), StringType())


def _rows(reader: StateReader, name: str) -> Iterator[tuple[Any, Any]]:
    """The keys of a PE or store with its attributes, or its values."""
    if name in reader.elements:
        return reader.instances(name)
    return reader.store(name) if name in reader.stores else iter(())


class SavepointReader(Shipped, DataSourceReader):
    """Reads a PE or a store of all tasks."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._wanted = Wanted.of(options)
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in self._wanted.manifest.tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        with self._wanted.opened(partition.value) as state:
            reader, name = StateReader(state), self._wanted.name
            rows = _rows(reader, name)
            if name in reader.stores:
                rows = ((key, {"value": _text(value)}) for key, value in rows)
            while some := list(islice(rows, _ROWS)):
                columns = [
                    pa.array(_values(some, field), type=kind.type)
                    for kind, field in zip(arrow, self._schema.fields, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=arrow)


def _values(rows: Sequence[tuple[Any, dict[str, Any]]], field: StructField) -> list[Any]:
    if field.name == "key":
        if isinstance(field.dataType, StructType):
            return [{f"_{n}": part for n, part in enumerate(key, 1)} for key, _ in rows]
        return [key for key, _ in rows]
    found = [row.get(field.name) for _, row in rows]
    if isinstance(field.dataType, StringType):
        return [each if each is None or isinstance(each, str) else _text(each) for each in found]
    kind = _CONVERTED.get(type(field.dataType))
    if kind is not None:
        return [None if each is None else msgspec.convert(each, kind) for each in found]
    return found


def _text(value: Any) -> str:
    return _json(value).decode()
