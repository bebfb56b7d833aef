"""Which system each input stream of an app is read from. Pure.

Rules
- The setting ``task.inputs`` wins over what the app says, for the streams that it names.
- An app of tasks need not declare its inputs: those that it or the settings name are declared for
  it, and carry GenericEvents.
- A stream that only ``task.broadcast.inputs`` names is read in those partitions alone; of others
  all partitions are read.
- A stream is called in the app as it is in its system; so no two systems can bring the same name.
"""

from __future__ import annotations

from collections.abc import Iterable

from s4node.app.app import App
from s4node.app.stream import InputStream, OutputStream
from s4node.app.stream_task import TaskApp
from s4node.config import settings
from s4node.config.config import Config
from s4node.config.kinds import is_name
from s4node.errors import ConfigError
from s4node.events.event import GenericEvent

Pair = tuple[str, str]


def bind(app: App, config: Config) -> None:
    """Give the input streams of ``app`` their systems; raises ConfigError with all mistakes."""
    problems: list[str] = []
    named = _pairs(settings.TASK_INPUTS.name, [*config[settings.TASK_INPUTS]], problems)
    if isinstance(app, TaskApp) and not named:
        named = _pairs(f"inputs of app {app.name!r}", app.inputs, problems)
    broadcast = [(one.system, one.stream) for one in config[settings.BROADCAST_INPUTS]]
    homes: dict[str, str] = {}
    for system, name in dict.fromkeys([*named, *broadcast]):
        if homes.setdefault(name, system) != system:
            problems.append(
                f"stream {name!r} is an input from {homes[name]!r} and from {system!r}; an app has "
                f"one stream of a name: give one of them another name in its system"
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
    """The input streams that are read from systems."""
    inputs = [stream for stream in app.streams.values() if isinstance(stream, InputStream)]
    return [stream for stream in inputs if not stream.is_live]


def live_of(app: App) -> list[str]:
    """The names of the input streams that producers send to."""
    inputs = [stream for stream in app.streams.values() if isinstance(stream, InputStream)]
    return [stream.name for stream in inputs if stream.is_live]


def inner_of(app: App) -> frozenset[str]:
    """The names of the streams on which nobody but the app's own tasks send."""
    streams = app.streams.values()
    fed = {stream.name for stream in streams if not isinstance(stream, OutputStream)}
    return frozenset(fed.difference(live_of(app)))


def exchanges(app: App) -> bool:
    """Whether tasks of the app that keep what they do send each other events: on streams inside
    the app, or those of an input that belong to the task of their key."""
    streams = app.streams.values()
    internal = any(not isinstance(stream, InputStream | OutputStream) for stream in streams)
    return internal or any(stream.key is not None for stream in replayable(app))


def durable_of(app: App, config: Config) -> frozenset[str]:
    """The live inputs of which tasks commit how far their producers are.

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
    found = [name for name in live if grades.get(name, "durable" if kept else "fast") == "durable"]
    if problems:
        raise ConfigError("\n".join(problems))
    return frozenset(found)


def grades_of(app: App, config: Config) -> dict[str, str]:
    """What is promised for each stream: fast or durable.

    What tasks put on streams leaves with their commits, where they have any.
    """
    durable = durable_of(app, config)
    kept = bool(durable or replayable(app))
    return {
        name: "durable" if (name in durable if name in live_of(app) else kept) else "fast"
        for name in app.streams
    }


def _pairs(where: str, texts: Iterable[str], problems: list[str]) -> list[Pair]:
    """``system.stream`` taken apart at the first dot."""
    pairs: list[Pair] = []
    for text in texts:
        system, _, stream = text.partition(".")
        if is_name(system) and is_name(stream):
            pairs.append((system, stream))
        else:
            problems.append(f"{where}: {text!r} is not system.stream, such as log.clicks")
    return pairs
