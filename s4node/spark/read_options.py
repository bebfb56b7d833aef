"""The options of ``spark.read.format("s4")``: which stream, which columns, from where to where.

Rules
- An unknown option is refused: a misspelled one would have no effect.
- A place in a stream is a startpoint as text, or an offset for each partition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from s4node.errors import ConfigError, StartpointError
from s4node.net.certificates.credentials import OPTIONS, Credentials
from s4node.offsets.startpoint import (
    Oldest,
    Specific,
    Startpoint,
    Timestamp,
    Upcoming,
    check_places,
)
from s4node.spark.addresses import (
    ADDRESS,
    CLUSTER,
    COORDINATION,
    addresses_of,
    check_given,
    problems_of,
    reachable,
)
from s4node.spark.connection import ask

Options = Mapping[str, str]

_FORMS = (
    "write oldest, upcoming, 'timestamp 2026-01-31T08:00:00Z' (or ms since 1970), 'offset 42', or "
    'offsets by partition as in {"0": 42, "1": 17}'
)


_KNOWN = {
    *(ADDRESS, CLUSTER, COORDINATION, *OPTIONS),
    *("stream", "type", "columns", "start", "end", "patience", "path"),
}
_STREAMING = {"maxeventspertrigger"}


@dataclass(frozen=True)
class Wanted:
    """The options of a read."""

    addresses: tuple[str, ...]
    stream: str
    type: str = ""
    columns: str = ""
    start: str = "oldest"
    end: str = "upcoming"
    most: int | None = None
    patience: float = 30.0
    credentials: Credentials | None = None

    def question(self, question: str, **arguments: Any) -> dict[str, Any]:
        """The answer of the log; raises NoAnswerError if there is none in time."""
        return ask(
            self.addresses,
            self.patience,
            question,
            credentials=self.credentials,
            stream=self.stream,
            **arguments,
        )

    @property
    def address(self) -> str:
        """The address that this process reaches."""
        return reachable(self.addresses, self.patience, self.credentials)

    @classmethod
    def of(cls, options: Options) -> Wanted:
        """The values of ``options``; raises ConfigError."""
        check_given(options)
        unknown = sorted(options.keys() - _KNOWN - _STREAMING)
        if unknown:
            raise ConfigError(
                f"format('s4') does not know the option {unknown[0]!r} for reading; it knows "
                f"address, cluster, coordination, stream, type, columns, start, end, "
                f"maxEventsPerTrigger, patience and {', '.join(OPTIONS)}"
            )
        problems = problems_of(options)
        if not options.get("stream"):
            problems.append("option stream is missing, as in .option('stream', 'clicks')")
        if problems:
            raise ConfigError(f"format('s4'): {'; '.join(problems)}", tuple(problems))
        return cls(
            addresses_of(options, options["stream"]),
            options["stream"],
            options.get("type", ""),
            options.get("columns", ""),
            options.get("start", "oldest"),
            options.get("end", "upcoming"),
            _number(options, "maxEventsPerTrigger", int)
            if options.get("maxEventsPerTrigger")
            else None,
            _number(options, "patience", float, 1e6) if options.get("patience") else 30.0,
            Credentials.in_options(options),
        )


def _number(options: Options, name: str, kind: type[Any], below: float = 1e18) -> Any:
    try:
        found = kind(options[name])
    except ValueError:
        found = 0
    if not 0 < found < below:
        raise ConfigError(
            f"option {name}={options[name]!r} is not a number above 0 and below {below:g}"
        )
    return found


def parse_start(option: str, text: str) -> Startpoint | dict[int, int]:
    """A place to begin or to end at, from the text of an option; raises ConfigError."""
    given = text.strip()
    first, _, rest = given.partition(" ")
    try:
        if given == "oldest":
            return Oldest()
        if given == "upcoming":
            return Upcoming()
        if first == "offset" or re.fullmatch(r"\d+", given):
            return Specific(int(rest or given))
        if first == "timestamp":
            return Timestamp(_millis(rest.strip()))
        if given.startswith("{"):
            offsets = msgspec.json.decode(given, type=dict[int, int])
            check_places(offsets)
            return offsets
    except (ValueError, StartpointError, msgspec.MsgspecError) as error:
        raise ConfigError(f"option {option}={text!r}: {error}; {_FORMS}") from error
    raise ConfigError(f"option {option}={text!r} is not a place in a stream; {_FORMS}")


def _millis(text: str) -> int:
    if re.fullmatch(r"\d+", text):
        return int(text)
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("the time has no zone; end it in Z or +01:00")
    return int(moment.timestamp() * 1000)
