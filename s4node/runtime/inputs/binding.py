"""The binding of an app's input streams to systems. Pure.

Rules
- The setting ``task.inputs`` wins over the app, for the streams that it names.
- A TaskApp need not declare its inputs: streams that it or the settings name are declared for it,
  and carry GenericEvents.
- If only ``task.broadcast.inputs`` names a stream, only those partitions are read; otherwise all
  partitions are.
- A stream has the same name in the app and in its system, so two systems cannot bring the same
  name.
"""

from __future__ import annotations

from collections.abc import Iterable

from s4node.app.app import App
from s4node.app.stream import InputStream, OutputStream, outlets_of
from s4node.app.stream_task import TaskApp
from s4node.config import settings
from s4node.config.config import Config
from s4node.config.kinds import is_name
from s4node.errors import ConfigError
from s4node.events.event import GenericEvent

Pair = tuple[str, str]


def bind(app: App, config: Config) -> None:
    """Bind the input streams of ``app`` to systems; raises ConfigError with all mistakes."""
    problems: list[str] = []
    named = _pairs(settings.TASK_INPUTS.name, [*config[settings.TASK_INPUTS]], problems)
    if isinstance(app, TaskApp) and not named:
        named = _pairs(f"inputs of app {app.name!r}", app.inputs, problems)
    broadcast = [(one.system, one.stream) for one in config[settings.BROADCAST_INPUTS]]
    homes: dict[str, str] = {}
    for system, name in dict.fromkeys([*named, *broadcast]):
        if homes.setdefault(name, system) != system:
            problems.append(
                f"stream {name!r} is an input from {homes[name]!r} and from {system!r}; rename one "
                f"of them in its system, as stream names are unique in an app"
            )
            continue
        stream = app.streams.get(name)
        if stream is None and isinstance(app, TaskApp):
            stream = app.create_input_stream(name, types=GenericEvent)
        if not isinstance(stream, InputStream):
            known = [s.name for s in app.streams.values() if isinstance(s, InputStream)]
            problems.append(
                f"{system}.{name} is named as an input, and app {app.name!r} has no input stream "
                f"{name!r}; it has: {', '.join(known) or 'none'}"
            )
            continue
        named_only = (system, name) not in named and stream.system != system
        stream.system = system
        stream.whole = not named_only
    if problems:
        raise ConfigError("\n".join(problems))


def replayable(app: App) -> list[InputStream]:
    inputs = [stream for stream in app.streams.values() if isinstance(stream, InputStream)]
    return [stream for stream in inputs if not stream.is_live]


def live_of(app: App) -> list[str]:
    """The names of the input streams that producers send to."""
    inputs = [stream for stream in app.streams.values() if isinstance(stream, InputStream)]
    return [stream.name for stream in inputs if stream.is_live]


def inner_of(app: App) -> frozenset[str]:
    """The names of the streams on which only the app's own tasks send."""
    streams = app.streams.values()
    fed = {stream.name for stream in streams if not isinstance(stream, OutputStream)}
    return frozenset(fed.difference(live_of(app)))


def exchanges(app: App) -> bool:
    """Return True if durable tasks of the app send events to each other.

    They do on internal streams, and for keyed inputs, whose events belong to the task of their key.
    """
    streams = app.streams.values()
    internal = any(not isinstance(stream, InputStream | OutputStream) for stream in streams)
    return internal or any(stream.key is not None for stream in replayable(app))


def durable_of(app: App, config: Config) -> frozenset[str]:
    """The durable live inputs: tasks commit the positions of their producers.

    Raises ConfigError with all mistakes in the settings.
    """
    live = live_of(app)
    grades = config.matching(settings.STREAM_GRADE)
    problems = []
    for name in grades:
        if name not in live:
            key = settings.STREAM_GRADE.name.replace("<stream>", name)
            problems.append(
                f"{key}: a grade is for input streams that producers send to; app {app.name!r} "
                f"has: {', '.join(live) or 'none'}"
            )
    kept = bool(replayable(app) or app.stores) or "durable" in grades.values()
    kept = kept or any(p.windows or p.on_timer for p, _ in app.prototypes.values())
    kept = kept or bool(outlets_of(app.streams))
    found = [name for name in live if grades.get(name, "durable" if kept else "fast") == "durable"]
    if not found and not replayable(app) and config[settings.CLUSTER_PARTITIONS] > 1:
        problems += [
            f"stream {name!r} of app {app.name!r} has time=, but fast streams report none to other "
            f"tasks; set s4.stream.<stream>.grade = durable for an input, or use one partition"
            for name in inner_of(app)
            if app.streams[name].time is not None and not app.streams[name].in_order_of
        ]
    if problems:
        raise ConfigError("\n".join(problems))
    return frozenset(found)


def grades_of(app: App, config: Config) -> dict[str, str]:
    """The grade of each stream, fast or durable; events of tasks that commit are durable."""
    durable = durable_of(app, config)
    kept = bool(durable or replayable(app) or outlets_of(app.streams))
    return {
        name: "durable" if (name in durable if name in live_of(app) else kept) else "fast"
        for name in app.streams
    }


def _pairs(where: str, texts: Iterable[str], problems: list[str]) -> list[Pair]:
    """Split each ``system.stream`` at the first dot."""
    pairs: list[Pair] = []
    for text in texts:
        system, _, stream = text.partition(".")
        if is_name(system) and is_name(stream):
            pairs.append((system, stream))
        else:
            problems.append(f"{where}: {text!r} is not system.stream, such as log.clicks")
    return pairs
