"""s4node: a staged, event-driven node server for keyed streams.

An app is a graph of streams and processing elements (PEs); each key has its own PE instance.

- Write apps with :class:`App`, :class:`AdapterApp`, :class:`ProcessingElement`, :class:`Event`,
  :class:`GenericEvent`, :class:`KeyFinder`.
- Write tasks in the manner of Apache Samza with :class:`TaskApp`; what a task is given is an
  :class:`Envelope`, a :class:`Collector` and a :class:`Coordinator`.
- Send events to a running app with :class:`Client` (trio) or :class:`SyncClient`.
- Have effects outside happen once by :func:`event_id`, a stable id of the event at hand.
- Read a stream again with ``client.subscribe`` and a startpoint: :class:`Oldest`,
  :class:`Upcoming`, :class:`Timestamp`, :class:`Specific`; :class:`EmbeddedLog` manages a log.
- Run an app inside your own trio program with :class:`Container` and :class:`Config`.
- Choose what a full stage does with an :class:`Executor` of your own.
- Test apps in memory with :mod:`s4node.testing`.
- Every error is an :class:`S4Error`.

Names are loaded when they are first used, so that the command line starts quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from s4node.app import AdapterApp, App
    from s4node.comm.client import Client, ClientStream
    from s4node.comm.outbox import Refusal
    from s4node.comm.sync_client import SyncClient, SyncStream
    from s4node.config import Config
    from s4node.container.container import Container
    from s4node.container.lifecycle import ContainerListener
    from s4node.errors import S4Error
    from s4node.event import Event, GenericEvent, event_id
    from s4node.executors.policy import Executor
    from s4node.keys import Key, KeyFinder
    from s4node.pe.element import ProcessingElement
    from s4node.progress.startpoint import Oldest, Specific, Timestamp, Upcoming
    from s4node.stream import InputStream, OutputStream, Stream
    from s4node.systems.embedded_log import EmbeddedLog
    from s4node.tasks import (
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

__version__ = "0.1.0"

__all__ = [
    "App",
    "AdapterApp",
    "ProcessingElement",
    "Event",
    "GenericEvent",
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
    "App": "app",
    "AdapterApp": "app",
    "ProcessingElement": "pe.element",
    "Event": "event",
    "GenericEvent": "event",
    "event_id": "event",
    "Key": "keys",
    "KeyFinder": "keys",
    "Stream": "stream",
    "InputStream": "stream",
    "OutputStream": "stream",
    "TaskApp": "tasks",
    "StreamTask": "tasks",
    "AsyncStreamTask": "tasks",
    "InitableTask": "tasks",
    "WindowableTask": "tasks",
    "EndOfStreamListenerTask": "tasks",
    "ClosableTask": "tasks",
    "TaskContext": "tasks",
    "Envelope": "tasks",
    "Collector": "tasks",
    "Coordinator": "tasks",
    "Callback": "tasks",
    "Client": "comm.client",
    "ClientStream": "comm.client",
    "SyncClient": "comm.sync_client",
    "SyncStream": "comm.sync_client",
    "Refusal": "comm.outbox",
    "Oldest": "progress.startpoint",
    "Upcoming": "progress.startpoint",
    "Timestamp": "progress.startpoint",
    "Specific": "progress.startpoint",
    "EmbeddedLog": "systems.embedded_log",
    "Container": "container.container",
    "ContainerListener": "container.lifecycle",
    "Config": "config",
    "Executor": "executors.policy",
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
