"""The events in the body of a request, and the answers about them. Pure.

Rules
- ``application/json`` is one object, or an array of objects; ``application/x-ndjson`` has one in
  each line, and empty lines count as lines only.
- All events are checked before any is sent: a bad one has its line, or its place in the array, and
  a reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from s4node.events.declared_types import checks_of
from s4node.events.json_objects import are_objects
from s4node.events.schema import GENERIC, UNREADABLE
from s4node.events.type_declaration import TypeDecl
from s4node.http.messages import JSON, Answer, Request

NDJSON = "application/x-ndjson"
_SHOWN = 100
_BOM = b"\xef\xbb\xbf"
"""The mark that editors on Windows write first."""

_one = msgspec.json.Decoder(msgspec.Raw)
_all = msgspec.json.Decoder(list[msgspec.Raw])


class Problem(NamedTuple):
    """An event that is not taken: its line, 0 if that is unknown, and why."""

    line: int
    reason: str


class Found(NamedTuple):
    """The texts of the events, each with its line, and what is wrong."""

    texts: list[bytes]
    lines: Sequence[int]
    problems: list[Problem]


def events_in(request: Request) -> Found | Answer:
    """The events of a request, whose texts are whole values of JSON."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = request.body.removeprefix(_BOM)
    if kind == JSON:
        return _in_json(body.strip())
    if kind == NDJSON:
        return _in_lines(body)
    return Answer(415, f"send {JSON} (an object, or an array of objects) or {NDJSON}\n")


def _in_json(body: bytes) -> Found:
    try:
        raws = _all.decode(body) if body[:1] == b"[" else [_one.decode(body)]
    except UNREADABLE as error:
        return Found([], (), [Problem(1, f"this is no JSON: {error}")])
    return Found([bytes(raw) for raw in raws], range(1, len(raws) + 1), [])


def _in_lines(body: bytes) -> Found:
    lines = body.removesuffix(b"\n").split(b"\n")
    if are_objects(body.removesuffix(b"\n"), len(lines)):
        return Found(lines, range(1, len(lines) + 1), [])
    texts: list[bytes] = []
    numbers: list[int] = []
    problems: list[Problem] = []
    for number, line in enumerate(lines, 1):
        if text := line.strip():
            try:
                _one.decode(text)
            except UNREADABLE as error:
                problems.append(Problem(number, f"this is no JSON: {error}"))
            else:
                texts.append(text)
                numbers.append(number)
    return Found(texts, numbers, problems)


def type_of(types: Sequence[TypeDecl], name: str) -> TypeDecl | Answer:
    names = [kind.name for kind in types]
    if not name and len(types) != 1:
        return Answer(400, f"the stream takes {', '.join(names)}; name one with ?type=\n")
    for kind in types:
        if kind.name == (name or names[0]):
            return kind
    return Answer(400, f"the stream takes {', '.join(names)}, not {name!r}\n")


def checked(found: Found, kind: TypeDecl, first: int, end: int) -> list[Problem]:
    wrong = checks_of(kind).refusals(found.texts[first:end])
    return [Problem(found.lines[first + at], why) for at, why in wrong]


def generic() -> TypeDecl:
    """The type of a stream that takes any object."""
    return TypeDecl(GENERIC, 0, ())


def refused(problems: Sequence[Problem], taken: int = 0, kind: TypeDecl | None = None) -> Answer:
    """The answer if events are refused; so many others were ``taken`` all the same. The fields of
    the ``kind`` that they should have been are named."""
    said: dict[str, Any] = {
        "error": f"{_events(len(problems))} refused, and {_events(taken)} taken",
        "taken": taken,
        "lines": [{"line": each.line or None, "reason": each.reason} for each in problems[:_SHOWN]],
    }
    if kind is not None and kind.fields:
        fields = {name: text if must else f"{text}, optional" for name, text, must in kind.fields}
        said["takes"] = {kind.name: fields}
    return Answer(422, msgspec.json.encode(said), JSON)


def _events(count: int) -> str:
    return "1 event is" if count == 1 else f"{count or 'no'} events are"


def taken(stream: str, count: int, *, durable: bool) -> Answer:
    said = {"stream": stream, "events": count, "committed": durable}
    return Answer(200 if durable else 202, msgspec.json.encode(said), JSON)


def try_again(status: int, text: str, seconds: int = 1) -> Answer:
    return Answer(status, f"{text}\n", headers=(("Retry-After", str(seconds)),))


def id_of(caller: str, key: str) -> str:
    """The id of the producer that sends a caller's batch with this key."""
    return hashlib.sha256(f"{caller}\0{key}".encode()).hexdigest()[:32]


def hash_of(found: Found) -> str:
    return hashlib.sha256(b"\n".join(found.texts)).hexdigest()[:32]
