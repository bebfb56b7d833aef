"""What the commands of ``s4`` are made of: parsers, options of several, kinds of arguments.

Rules
- What a command gets is the value itself: a number, a startpoint. Nothing reads a text again.
- A number is written in the digits 0 to 9, and is one that a frame and a database hold.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import datetime
from typing import Literal

from s4node.config.kinds import is_unicode
from s4node.offsets.startpoint import LARGEST, Oldest, Specific, Startpoint, Timestamp, Upcoming

DEFAULT_ADDRESS = "tcp://127.0.0.1:12000"

_DIGITS = len(str(LARGEST))


def command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    function: Callable[[argparse.Namespace], int],
    summary: str,
    example: str,
) -> argparse.ArgumentParser:
    """A command of this name, whose help says what it does, with an example."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example: {example}",
    )
    parser.set_defaults(function=function)
    return parser


def group(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    example: str,
    *,
    description: str = "",
) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    """A command of this name that is made of further ones, which are added to what is returned.

    Its help says the ``summary``, unless there is a ``description``.
    """

    def tell(_: argparse.Namespace) -> int:
        parser.print_help()
        return 2

    parser = command(commands, name, tell, summary, example)
    parser.description = description or parser.description
    return parser.add_subparsers(dest="action", metavar="ACTION", title="actions")


# -- options that several commands have -----------------------------------------------------------


def setting_options(
    parser: argparse.ArgumentParser,
    *,
    file: str = "property file",
    setting: str = "one setting",
) -> None:
    """Property files and single settings, which are called so in the help."""
    parser.add_argument("--config", action="append", default=[], metavar="FILE",
                        help=f"{file}; may come several times, later ones win")  # fmt: skip
    parser.add_argument("-p", dest="settings", action="append", default=[], metavar="KEY=VALUE",
                        help=f"{setting}; wins over files")  # fmt: skip


def cluster_option(parser: argparse.ArgumentParser, default: str = "default") -> None:
    """Which cluster it is about."""
    parser.add_argument("--cluster", metavar="CLUSTER", help=f"(default: {default})")


def folder_option(parser: argparse.ArgumentParser, default: str = "~/.s4node") -> None:
    """Where that cluster's coordination is."""
    parser.add_argument("--folder", type=text, metavar="FOLDER",
                        help=f"where the nodes find each other (default: {default})")  # fmt: skip


def to_option(
    parser: argparse.ArgumentParser, what: str, default: str, *, several: bool = True
) -> None:
    """The address of a node, which is ``what``; without one, ``default`` is meant. With ``several``
    it is a list."""
    more = "; may come several times, and any of the nodes may be down" if several else ""
    parser.add_argument("--to", metavar="ADDRESS", action="append" if several else "store",
                        help=f"{what}{more} (default: {default}; else {DEFAULT_ADDRESS})"
                        )  # fmt: skip


def timeout_option(parser: argparse.ArgumentParser, what: str, default: float = 10.0) -> None:
    """How long to wait at most, for ``what``."""
    parser.add_argument("--timeout", type=seconds, default=default, metavar="SECONDS",
                        help=f"for {what} (default %(default)g)")  # fmt: skip


# -- kinds of arguments ---------------------------------------------------------------------------


def seconds(text: str) -> float:
    """More than 0 seconds."""
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
    """Where to begin to read: a word, an offset, or a time."""
    word, _, millis = text.partition(":")
    if word == "ms" and _is_number(millis):
        return Timestamp(whole(millis))
    if _is_number(text):
        return Specific(whole(text))
    match text:
        case "oldest":
            return Oldest()
        case "upcoming":
            return Upcoming()
        case "newest":
            return "newest"
    raise argparse.ArgumentTypeError(
        f"{text!r} is no start; write oldest, newest, upcoming, an offset, or ms:MILLISECONDS "
        f"since 1970"
    )


def millis(text: str) -> int:
    """Unix time in milliseconds: as it is, or ISO 8601; without a zone, this machine's."""
    if _is_number(text):
        return whole(text)
    try:
        value = int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time; write it as 2026-01-31T08:00:00Z, or in milliseconds since 1970"
        )
    return value


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _number(text: str, least: int) -> int:
    """A whole number that fits into a frame and a database."""
    if not _is_number(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, {least} or more")
    digits = text.lstrip("0") or "0"
    value = int(digits[: _DIGITS + 1])  # Python reads no number of thousands of digits
    if value > LARGEST:
        raise argparse.ArgumentTypeError(f"{text} is too large; the largest is {LARGEST}")
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, {least} or more")
    return value


def text(given: str) -> str:
    """A text that is not empty."""
    if not given.strip():
        raise argparse.ArgumentTypeError("it is empty")
    return utf8(given)


def utf8(given: str) -> str:
    """A text that can be sent and written; it may be empty."""
    if not is_unicode(given):
        raise argparse.ArgumentTypeError(f"{given!r} is not UTF-8")
    return given
