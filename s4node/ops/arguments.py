"""What the commands of ``s4`` are made of: their parsers, and kinds of arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable

DEFAULT_ADDRESS = "tcp://127.0.0.1:12000"


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
) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    """A command of this name that is made of further ones, which are added to what is returned."""

    def tell(_: argparse.Namespace) -> int:
        parser.print_help()
        return 2

    parser = command(commands, name, tell, summary, example)
    return parser.add_subparsers(dest="action", metavar="ACTION", title="actions")


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
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or more")
    return int(text)


def whole(text: str) -> int:
    """A whole number, 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 0 or more")
    return int(text)


def text(given: str) -> str:
    """A text that is not empty."""
    if not given.strip():
        raise argparse.ArgumentTypeError("it is empty")
    return given
