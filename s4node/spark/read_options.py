"""The options of ``spark.read.format("s4")``: which stream, which columns, from where to where.

Rules
- An unknown option is refused: a misspelled one would have no effect.
- A place in a stream is a startpoint as text, or an offset for each partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from s4node.errors import ConfigError, StartpointError
from s4node.net.certificates.credentials import OPTIONS, Credentials
from s4node.offsets.startpoint import FORMS, Startpoint, check_places, parse
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

_BY_PARTITION = 'offsets by partition as in {"0": 42, "1": 17}'


_KNOWN = {
    *(ADDRESS, CLUSTER, COORDINATION, *OPTIONS),
    *("stream", "type", "columns", "start", "end", "patience", "path"),
}
_STREAMING = {"maxeventspertrigger"}


@dataclass(frozen=True)
class Wanted:
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
    if not text.lstrip().startswith("{"):
        try:
            return parse(text)
        except StartpointError as error:
            forms = f"{FORMS}, or {_BY_PARTITION}"
            message = str(error).replace(FORMS, forms)
            raise ConfigError(f"option {option}: {message}") from error
    try:
        offsets = msgspec.json.decode(text, type=dict[int, int])
        check_places(offsets)
    except (StartpointError, msgspec.MsgspecError) as error:
        raise ConfigError(f"option {option}={text!r}: {error}; write {_BY_PARTITION}") from error
    return offsets
