"""s4node: a staged, event-driven node server for keyed streams.

An app is a graph of streams and processing elements (PEs); each key has its own PE instance.

- Write apps with :class:`App`, :class:`AdapterApp`, :class:`ProcessingElement`, :class:`Event`,
  :class:`GenericEvent`, :class:`Tombstone`, :class:`KeyFinder`.
- Write tasks in the manner of Apache Samza with :class:`TaskApp`; a task is given
  :class:`Envelope`, :class:`Collector` and :class:`Coordinator` objects.
- Send events to a running app with :class:`Client` (trio) or :class:`SyncClient`; to one that
  wants certificates, with :class:`Credentials`.
- Make effects outside idempotent with :func:`event_id`, a stable id of the current event.
- Read a stream again with ``client.subscribe`` and a startpoint: :class:`Oldest`,
  :class:`Upcoming`, :class:`Timestamp`, :class:`Specific`; :class:`EmbeddedLog` manages a log.
- Run an app inside your own trio program with :class:`Container` and :class:`Config`.
- Write your own :class:`Executor` to decide what a full stage does.
- Test apps in memory with :mod:`s4node.testing`.
- Every error that s4node raises on purpose is an :class:`S4Error`.

Names are loaded when they are first used, so that the command line starts quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from s4node.version import __version__ as __version__

if TYPE_CHECKING:
    from s4node.app.app import AdapterApp, App
    from s4node.app.processing_element import OfKey, ProcessingElement
    from s4node.app.stream import InputStream, OutputStream, Stream
    from s4node.app.stream_task import (
        AsyncStreamTask,
        Callback,
        ClosableTask,
        Collector,
        Coordinator,
        EndOfStreamListenerTask,
        Envelope,
        InitableTask,
        StreamTask,
        TaskApp,
        TaskContext,
        WindowableTask,
    )
    from s4node.app.windows import Window, count, day, hopping, session, tumbling
    from s4node.config.config import Config
    from s4node.errors import S4Error
    from s4node.events.event import Event, GenericEvent, Tombstone, created_ms, event_id
    from s4node.events.keys import Key, KeyFinder
    from s4node.net.certificates.credentials import Credentials
    from s4node.net.client.client import Client
    from s4node.net.client.client_stream import ClientStream
    from s4node.net.client.sync_client import SyncClient, SyncStream
    from s4node.net.egress.refusal import Refusal
    from s4node.offsets.startpoint import Oldest, Specific, Timestamp, Upcoming
    from s4node.pes.aggregates import Aggregates, Count, Fold, Max, Mean, Min, Sum, Top
    from s4node.pes.pairs import Pairs
    from s4node.runtime.container.container import Container
    from s4node.runtime.container.lifecycle import ContainerListener
    from s4node.stages.executors import Executor
    from s4node.systems.embedded_log import EmbeddedLog

__all__ = [
    "App",
    "AdapterApp",
    "ProcessingElement",
    "OfKey",
    "Window",
    "tumbling",
    "hopping",
    "session",
    "count",
    "day",
    "Aggregates",
    "Count",
    "Sum",
    "Min",
    "Max",
    "Mean",
    "Top",
    "Fold",
    "Pairs",
    "Event",
    "GenericEvent",
    "Tombstone",
    "created_ms",
    "event_id",
    "Key",
    "KeyFinder",
    "Stream",
    "InputStream",
    "OutputStream",
    "TaskApp",
    "StreamTask",
    "AsyncStreamTask",
    "InitableTask",
    "WindowableTask",
    "EndOfStreamListenerTask",
    "ClosableTask",
    "TaskContext",
    "Envelope",
    "Collector",
    "Coordinator",
    "Callback",
    "Client",
    "ClientStream",
    "SyncClient",
    "SyncStream",
    "Credentials",
    "Refusal",
    "Oldest",
    "Upcoming",
    "Timestamp",
    "Specific",
    "EmbeddedLog",
    "Container",
    "ContainerListener",
    "Config",
    "Executor",
    "S4Error",
]

_HOMES = {
    "App": "app.app",
    "AdapterApp": "app.app",
    "ProcessingElement": "app.processing_element",
    "OfKey": "app.processing_element",
    "Window": "app.windows",
    "tumbling": "app.windows",
    "hopping": "app.windows",
    "session": "app.windows",
    "count": "app.windows",
    "day": "app.windows",
    "Aggregates": "pes.aggregates",
    "Count": "pes.aggregates",
    "Sum": "pes.aggregates",
    "Min": "pes.aggregates",
    "Max": "pes.aggregates",
    "Mean": "pes.aggregates",
    "Top": "pes.aggregates",
    "Fold": "pes.aggregates",
    "Pairs": "pes.pairs",
    "Event": "events.event",
    "GenericEvent": "events.event",
    "Tombstone": "events.event",
    "created_ms": "events.event",
    "event_id": "events.event",
    "Key": "events.keys",
    "KeyFinder": "events.keys",
    "Stream": "app.stream",
    "InputStream": "app.stream",
    "OutputStream": "app.stream",
    "TaskApp": "app.stream_task",
    "StreamTask": "app.stream_task",
    "AsyncStreamTask": "app.stream_task",
    "InitableTask": "app.stream_task",
    "WindowableTask": "app.stream_task",
    "EndOfStreamListenerTask": "app.stream_task",
    "ClosableTask": "app.stream_task",
    "TaskContext": "app.stream_task",
    "Envelope": "app.stream_task",
    "Collector": "app.stream_task",
    "Coordinator": "app.stream_task",
    "Callback": "app.stream_task",
    "Client": "net.client.client",
    "ClientStream": "net.client.client_stream",
    "SyncClient": "net.client.sync_client",
    "SyncStream": "net.client.sync_client",
    "Credentials": "net.certificates.credentials",
    "Refusal": "net.egress.refusal",
    "Oldest": "offsets.startpoint",
    "Upcoming": "offsets.startpoint",
    "Timestamp": "offsets.startpoint",
    "Specific": "offsets.startpoint",
    "EmbeddedLog": "systems.embedded_log",
    "Container": "runtime.container.container",
    "ContainerListener": "runtime.container.lifecycle",
    "Config": "config.config",
    "Executor": "stages.executors",
    "S4Error": "errors",
}


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 's4node' has no attribute {name!r}") from None
    return getattr(importlib.import_module(f"s4node.{home}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
