"""The commands behind ``s4 startpoint``, ``s4 checkpoint``, ``s4 state`` and ``s4 dead-letter``, as
:mod:`s4node.cli.main` has the others."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from s4node.cli.arguments import (
    cluster_option,
    command,
    group,
    millis,
    setting_options,
    to_option,
    whole,
)

if TYPE_CHECKING:
    from s4node.config.config import Config
    from s4node.offsets.startpoint import Startpoint

    Parsers = argparse._SubParsersAction[argparse.ArgumentParser]
    Load = Callable[..., Config]  # makes it of property files and settings


def startpoint_commands(commands: Parsers, load: Load) -> None:
    """``s4 startpoint``, and what comes behind it."""
    actions = group(
        commands,
        "startpoint",
        "say where an app's tasks begin to read when it next starts",
        "s4 startpoint set clicks 'log.clicks[0]' --oldest",
    )
    set_ = command(
        actions, "set", partial(_set, load), "ask for a startpoint; it waits for the next start",
        "s4 startpoint set clicks log.clicks --all-partitions --timestamp 2026-01-31T08:00:00Z",
    )  # fmt: skip
    _app(set_)
    set_.add_argument("input", metavar="INPUT", help="such as 'log.clicks[0]'")
    what = set_.add_mutually_exclusive_group(required=True)
    what.add_argument("--oldest", action="store_true", help="the first event that is still there")
    what.add_argument("--upcoming", action="store_true", help="what comes after the start")
    what.add_argument("--timestamp", type=millis, metavar="TIME",
                      help="the first event appended at or after it: ISO 8601, or "
                      "milliseconds since 1970")  # fmt: skip
    what.add_argument("--offset", type=whole, metavar="OFFSET", help="the event of this offset")
    _task(set_, "this task only, such as 'Partition 0' (default: all that read it)")
    _all_partitions(set_)

    show = command(
        actions, "show", partial(_show, load), "list the startpoints that are set, and those that "
        "tasks have been given and not yet passed", "s4 startpoint show clicks --json",
    )  # fmt: skip
    _app(show)

    delete = command(
        actions, "delete", partial(_delete, load), "take startpoints back",
        "s4 startpoint delete clicks 'log.clicks[0]'",
    )  # fmt: skip
    _app(delete)
    delete.add_argument("input", metavar="INPUT", nargs="?", default="",
                        help="such as 'log.clicks[0]'")  # fmt: skip
    delete.add_argument("--everything", action="store_true", help="all of the app's")
    _task(delete, "what is set for this task alone, or was given to it (default: for any)")
    _all_partitions(delete)
    for action in (set_, show, delete):
        _options(action)


def checkpoint_commands(commands: Parsers, load: Load) -> None:
    """``s4 checkpoint``, and what comes behind it."""
    actions = group(
        commands,
        "checkpoint",
        "show how far an app's tasks have come, and carry that elsewhere",
        "s4 checkpoint show clicks",
    )
    list_ = command(
        actions, "list", partial(_list, load), "list the tasks that have a checkpoint",
        "s4 checkpoint list clicks",
    )  # fmt: skip
    _app(list_)
    show = command(
        actions, "show", partial(_show_offsets, load), "show what each task goes on with: "
        "offsets, and numbers of producers", "s4 checkpoint show clicks --task 'Partition 0'",
    )  # fmt: skip
    _app(show)
    _task(show, "this one only")
    export = command(
        actions, "export", partial(_export, load), "print all checkpoints as JSON",
        "s4 checkpoint export clicks > checkpoints.json",
    )  # fmt: skip
    _app(export)
    import_ = command(
        actions, "import", partial(_import, load), "have tasks go on where a file says; the app "
        "must not run", "s4 checkpoint import clicks checkpoints.json",
    )  # fmt: skip
    _app(import_)
    import_.add_argument("file", metavar="FILE", help="what export has printed; - is standard "
                         "input")  # fmt: skip
    for action in (list_, show, import_):
        _options(action)
    _options(export, as_json=False)  # it prints nothing else


def state_commands(commands: Parsers, load: Load) -> None:
    """``s4 state``, and what comes behind it."""
    actions = group(
        commands,
        "state",
        "show what an app's PEs and stores keep, as of the last commits",
        "s4 state get clicks joe",
    )
    get = command(
        actions, "get", partial(_get_state, load), "show what is kept of a key",
        "s4 state get clicks joe --table Count",
    )  # fmt: skip
    _app(get)
    get.add_argument("key", metavar="KEY", help="as scan shows it")
    scan = command(
        actions, "scan", partial(_scan_state, load), "list what is kept",
        "s4 state scan clicks --limit 100",
    )  # fmt: skip
    _app(scan)
    scan.add_argument("--limit", type=whole, default=1000, metavar="N",
                      help="end after N rows (default %(default)s)")  # fmt: skip
    for action in (get, scan):
        action.add_argument("--table", metavar="NAME", default="", help="this PE or store only")
        _task(action, "this task only, such as 'Partition 0'")
        _options(action)


def dead_letter_commands(commands: Parsers, load: Load) -> None:
    """``s4 dead-letter``, and what comes behind it."""
    actions = group(
        commands,
        "dead-letter",
        "show the events that an app could not process, and send them again",
        "s4 dead-letter list clicks --config clicks.properties",
    )
    list_ = command(
        actions, "list", partial(_list_letters, load), "count them by stream and reason",
        "s4 dead-letter list clicks -p task.dead.letter.stream=log.dead "
        "-p systems.log.address=tcp://127.0.0.1:12000",
    )  # fmt: skip
    _app(list_)
    list_.add_argument("--all", dest="every", action="store_true", help="a line for each, with its "
                       "id")  # fmt: skip
    show = command(
        actions, "show", partial(_show_letters, load), "show some with event, place and traceback",
        "s4 dead-letter show clicks 0:17 --config clicks.properties",
    )  # fmt: skip
    _app(show)
    show.add_argument("ids", metavar="ID", nargs="+", help="as list shows it, such as 0:17")
    replay = command(
        actions, "replay", partial(_replay_letters, load), "send their events again to where they "
        "came from, each once", "s4 dead-letter replay clicks --stream log.clicks --config "
        "clicks.properties",
    )  # fmt: skip
    _app(replay)
    replay.add_argument("ids", metavar="ID", nargs="*", help="as list shows it (default: all)")
    to_option(
        replay, "where the app listens, for events of live streams", "that of the running app"
    )
    for action in (list_, replay):
        action.add_argument("--stream", metavar="STREAM", default="", help="those that came from "
                            "it, such as log.clicks")  # fmt: skip
    for action in (list_, show, replay):
        _options(action)


# -- arguments ------------------------------------------------------------------------------------


def _app(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", metavar="APP", help="the app's name, if it has run here; or as for "
                        "s4 run")  # fmt: skip


def _task(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--task", metavar="NAME", default="", help=text)


def _all_partitions(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all-partitions", action="store_true",
                        help="INPUT is a stream, such as log.clicks")  # fmt: skip


def _options(parser: argparse.ArgumentParser, *, as_json: bool = True) -> None:
    if as_json:
        parser.add_argument("--json", action="store_true", help="print JSON")
    cluster_option(parser)
    setting_options(parser, setting="one setting, such as s4.state.folder")


def _configured(load: Load, parsed: argparse.Namespace) -> Config:
    from s4node.cli.running_apps import config_of

    files: Sequence[str] = parsed.config
    config = load(files, parsed.settings, s4_cluster_name=parsed.cluster)
    return config_of(parsed.app, config)


# -- what they do ---------------------------------------------------------------------------------


def _set(load: Load, parsed: argparse.Namespace) -> int:
    from s4node.cli import startpoint

    return startpoint.set_(
        parsed.app,
        parsed.input,
        _startpoint(parsed),
        _configured(load, parsed),
        task=parsed.task,
        all_partitions=parsed.all_partitions,
        as_json=parsed.json,
    )


def _startpoint(parsed: argparse.Namespace) -> Startpoint:
    from s4node.offsets.startpoint import Oldest, Specific, Timestamp, Upcoming

    if parsed.oldest:
        return Oldest()
    if parsed.upcoming:
        return Upcoming()
    if parsed.timestamp is not None:
        return Timestamp(parsed.timestamp)
    return Specific(parsed.offset)


def _show(load: Load, parsed: argparse.Namespace) -> int:
    from s4node.cli import startpoint

    return startpoint.show(parsed.app, _configured(load, parsed), as_json=parsed.json)


def _delete(load: Load, parsed: argparse.Namespace) -> int:
    from s4node.cli import startpoint

    return startpoint.delete(
        parsed.app,
        parsed.input,
        _configured(load, parsed),
        task=parsed.task,
        all_partitions=parsed.all_partitions,
        everything=parsed.everything,
        as_json=parsed.json,
    )


def _list(load: Load, parsed: argparse.Namespace) -> int:
    from s4node.cli import checkpoint

    return checkpoint.list_(parsed.app, _configured(load, parsed), as_json=parsed.json)


def _show_offsets(load: Load, parsed: argparse.Namespace) -> int:
    from s4node.cli import checkpoint

    config = _configured(load, parsed)
    return checkpoint.show(parsed.app, config, task=parsed.task, as_json=parsed.json)


def _export(load: Load, parsed: argparse.Namespace) -> int:
    from s4node.cli import checkpoint

    return checkpoint.export(parsed.app, _configured(load, parsed))


def _import(load: Load, parsed: argparse.Namespace) -> int:
    from s4node.cli import checkpoint

    config = _configured(load, parsed)
    return checkpoint.import_(parsed.app, parsed.file, config, as_json=parsed.json)


def _get_state(load: Load, parsed: argparse.Namespace) -> int:
    from s4node.cli import state

    return state.get(
        parsed.app,
        parsed.key,
        _configured(load, parsed),
        table=parsed.table,
        task=parsed.task,
        as_json=parsed.json,
    )


def _scan_state(load: Load, parsed: argparse.Namespace) -> int:
    from s4node.cli import state

    return state.scan(
        parsed.app,
        _configured(load, parsed),
        table=parsed.table,
        task=parsed.task,
        limit=parsed.limit,
        as_json=parsed.json,
    )


def _list_letters(load: Load, parsed: argparse.Namespace) -> int:
    from s4node.cli import dead_letter

    return dead_letter.list_(
        parsed.app,
        _configured(load, parsed),
        every=parsed.every,
        stream=parsed.stream,
        as_json=parsed.json,
    )


def _show_letters(load: Load, parsed: argparse.Namespace) -> int:
    from s4node.cli import dead_letter

    config = _configured(load, parsed)
    return dead_letter.show(parsed.app, parsed.ids, config, as_json=parsed.json)


def _replay_letters(load: Load, parsed: argparse.Namespace) -> int:
    from s4node.cli import dead_letter
    from s4node.cli.running_apps import addresses_of_app

    return dead_letter.replay(
        parsed.app,
        parsed.ids,
        _configured(load, parsed),
        parsed.to or addresses_of_app(parsed.app),
        stream=parsed.stream,
        as_json=parsed.json,
    )
