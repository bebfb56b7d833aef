"""The parts of ``s4`` commands: parsers, shared options, kinds of arguments.

Rules
- A command gets values, such as a number or a startpoint, and parses no text again.
- A number is written in the digits 0 to 9, and fits into a frame and a database.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Literal

from s4node.config.kinds import is_unicode
from s4node.errors import StartpointError
from s4node.offsets.startpoint import FORMS, LARGEST, Startpoint, parse

DEFAULT_ADDRESS = "tcp://127.0.0.1:12000"

# options that are settings have the names of those
CLUSTER = "s4.cluster.name"
COORDINATION = "s4.coordination"
FOLDER = "s4.coordination.folder"
LISTENER = "s4.listener.address"
PARTITIONS = "s4.cluster.partitions"

_DIGITS = len(str(LARGEST))


def command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    function: Callable[..., int] | None,
    summary: str,
    example: str,
) -> argparse.ArgumentParser:
    """Add a command, whose help has its summary and an example. ``function`` does the work; it gets
    each argument by name, and the settings as ``config``."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example: {example}",
    )
    if function is not None:
        parser.set_defaults(function=function)
    return parser


def group(
    parser: argparse.ArgumentParser,
) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    """Make a command a group; returns the object to which its commands are added."""

    def show_help() -> int:
        parser.print_help()
        return 2

    parser.set_defaults(function=show_help)
    return parser.add_subparsers(dest="action", metavar="ACTION", title="actions")


# -- options that several commands have -----------------------------------------------------------


def setting_options(
    parser: argparse.ArgumentParser,
    *,
    file: str = "property file",
    setting: str = "one setting",
    names: tuple[str, str] = ("files", "settings"),
) -> None:
    """Add options for property files and single settings, with these texts in the help. The command
    gets the resulting ``config``; with other ``names``, it gets the options as they are."""
    add = partial(parser.add_argument, action="append", default=[])
    several = f"{file}; may be repeated, later ones win"
    add("--config", dest=names[0], metavar="FILE", help=several)
    add("-p", dest=names[1], metavar="KEY=VALUE", help=f"{setting}; wins over files")


def cluster_option(parser: argparse.ArgumentParser, default: str = "default") -> None:
    parser.add_argument("--cluster", dest=CLUSTER, metavar="CLUSTER", help=f"(default: {default})")


def folder_option(
    parser: argparse.ArgumentParser, default: str = "~/.s4node", dest: str = FOLDER
) -> None:
    where = f"where the nodes find each other (default: {default})"
    parser.add_argument("--folder", dest=dest, type=text, metavar="FOLDER", help=where)
    zookeeper = "where nodes of several machines find each other: zk://host:port,host:port/root"
    parser.add_argument("--coordination", dest=COORDINATION, metavar="URL", help=zookeeper)


def json_option(parser: argparse.ArgumentParser, what: str = "print JSON") -> None:
    parser.add_argument("--json", dest="as_json", action="store_true", help=what)


def to_option(
    parser: argparse.ArgumentParser,
    what: str,
    default: str,
    *,
    several: bool = True,
    settings: bool = True,
) -> None:
    """Add ``--to``, the address of the node that ``what`` describes. ``default`` describes the
    default. With ``several`` the option may be repeated. ``settings`` adds options for those of
    TLS, which a command that has options for all settings does not need."""
    more = "; may be repeated, and some of these nodes may be down" if several else ""
    where = f"{what}{more} (default: {default}; else {DEFAULT_ADDRESS})"
    action = "append" if several else "store"
    parser.add_argument("--to", metavar="ADDRESS", action=action, help=where)
    if not settings:
        return
    setting_options(
        parser,
        file="property file with s4.tls.certificate and so on, for an address with TLS",
        setting="one such setting",
        names=("to_files", "to_settings"),
    )


def from_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--from`` and what it may need."""
    since = "resume from a savepoint; replayable inputs go back to its offsets"
    parser.add_argument("--from", dest="savepoint", metavar="NAME", help=since)
    agreement_options(parser)


def agreement_options(parser: argparse.ArgumentParser) -> None:
    """Add what has to be agreed to when a job goes back."""
    again = "accept that consumers receive output since the savepoint a second time"
    parser.add_argument("--outputs", choices=["again"], default="", help=again)
    loss = "accept the loss of events acknowledged to producers since the savepoint"
    parser.add_argument("--accept-loss", action="store_true", help=loss)


def timeout_option(parser: argparse.ArgumentParser, what: str, default: float = 10.0) -> None:
    """Add ``--timeout``, the longest time to wait for ``what``."""
    said = f"for {what} (default %(default)g)"
    parser.add_argument("--timeout", type=seconds, default=default, metavar="SECONDS", help=said)


# -- kinds of arguments ---------------------------------------------------------------------------


def seconds(text: str) -> float:
    """A number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0 seconds")
    return value


def count(text: str) -> int:
    """A whole number, 1 or more."""
    return _number(text, 1)


def whole(text: str) -> int:
    """A whole number, 0 or more."""
    return _number(text, 0)


def start(text: str) -> Startpoint | Literal["newest"]:
    """A position to read from: a startpoint, or ``newest``."""
    try:
        return "newest" if text == "newest" else parse(text)
    except StartpointError as error:
        forms = f"newest, {FORMS}"
        raise argparse.ArgumentTypeError(str(error).replace(FORMS, forms)) from error


def millis(text: str) -> int:
    """Unix time in milliseconds, or ISO 8601; without a zone, local time."""
    if _is_number(text):
        return whole(text)
    try:
        value = int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; write 2026-01-31T08:00:00Z, or milliseconds since 1970"
        )
    return value


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _number(text: str, least: int) -> int:
    """A whole number that fits into a frame and a database."""
    if not _is_number(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, {least} or more")
    digits = text.lstrip("0") or "0"
    value = int(digits[: _DIGITS + 1])  # Python refuses numbers of thousands of digits
    if value > LARGEST:
        raise argparse.ArgumentTypeError(f"{text} is too large; the largest is {LARGEST}")
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, {least} or more")
    return value


def text(given: str) -> str:
    """A text that is not empty."""
    if not given.strip():
        raise argparse.ArgumentTypeError("the text is empty")
    return utf8(given)


def utf8(given: str) -> str:
    """A text that can be sent and written; it may be empty."""
    if not is_unicode(given):
        raise argparse.ArgumentTypeError(f"{given!r} is not UTF-8")
    return given
