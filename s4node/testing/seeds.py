"""Scenarios of a cluster, run by seed: what fails is repeated, and made as short as possible.

Rules
- A scenario is a function of a seed that uses ClusterTest. Two runs of one seed have to be equal.
- They are compared by their messages and their commits, which have the state, the timers and the
  outputs of tasks. What handlers do in memory only is not compared.
- Of a failure, the faults without which it still fails are left out, one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from itertools import chain, zip_longest
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from s4node.errors import S4Error
from s4node.events.type_declaration import TypeDecl
from s4node.net.wire import frame as wire
from s4node.net.wire.body import raws_of
from s4node.state import remote_log
from s4node.state.remote_log import Row
from s4node.state.rows import PREFIX_BYTES
from s4node.testing.faults import Fault
from s4node.testing.memory_network import Message

_SHOWN = 30
"""The number of messages shown of a run that fails, the newest ones."""

_MOST_EVENTS, _MOST_LETTERS = 5, 300
"""The characters that are shown of a message."""


class Recorded(NamedTuple):
    """A run of a scenario: the faults that were chosen, and all messages."""

    left_out: frozenset[int]
    chosen: list[Fault]
    traces: list[list[Message]]


recorded: ContextVar[Recorded | None] = ContextVar("recorded", default=None)
"""Where the ClusterTests of a scenario record what happens; None outside of :func:`check_seeds`."""


def check_seeds(scenario: Callable[[int], object], seeds: Iterable[int]) -> None:
    """Run a scenario with each of the seeds; raise the first error, with how to repeat it.

    The error has notes: the seed, the fewest faults with which the scenario still fails, and the
    last messages of that run. The first seed runs twice. Raises S4Error if two runs of a seed
    differ, because the app or the scenario reads the time or randomness of the machine, has
    threads, or leaves something behind in a module.
    """
    for number, seed in enumerate(seeds):
        error, run = _run(scenario, seed)
        if error is None and number:
            continue
        other, again = _run(scenario, seed)
        _check_equal(seed, run, again)
        if (error is None) != (other is None):
            raise S4Error(
                f"seed {seed}: one of two equal runs fails, so something is left of the other one; "
                f"keep what changes in attributes of PEs, not in modules or classes"
            ) from (error or other)
        if error is not None:
            raise _shortened(scenario, seed, error, run)


def _run(
    scenario: Callable[[int], object], seed: int, left_out: frozenset[int] = frozenset()
) -> tuple[Exception | None, Recorded]:
    run = Recorded(left_out, [], [])
    token = recorded.set(run)
    try:
        scenario(seed)
    except Exception as error:
        return error, run
    finally:
        recorded.reset(token)
    return None, run


def _check_equal(seed: int, one: Recorded, other: Recorded) -> None:
    messages = [[*chain.from_iterable(run.traces)] for run in (one, other)]
    for number, (first, second) in enumerate(zip_longest(*messages)):
        if first != second:
            text_of, other_text = map(MessageTexts, messages)
            texts = f"\n    {text_of(first, other=second)}\n    {other_text(second, other=first)}"
            raise S4Error(
                f"seed {seed}: two runs differ at message {number}; take the time from "
                f"app.clock(), chance from a Random with a seed, and start no threads:{texts}"
            )


def _shortened(
    scenario: Callable[[int], object], seed: int, error: Exception, run: Recorded
) -> Exception:
    left_out: frozenset[int] = frozenset()
    chosen = run.chosen
    for index in range(len(chosen)):
        found, shorter = _run(scenario, seed, left_out | {index})
        if found is not None:
            error, run, left_out = found, shorter, left_out | {index}
    kept = [fault for index, fault in enumerate(chosen) if index not in left_out]
    lines = "".join(f"\n    {fault}," for fault in kept)
    error.add_note(
        f"check_seeds: seed {seed} fails with {len(kept)} of {len(chosen)} chosen faults:{lines}"
    )
    messages = [*chain.from_iterable(run.traces)]
    text = MessageTexts(messages)
    shown = "".join(f"\n    {text(each)}" for each in messages[-_SHOWN:])
    error.add_note(f"the last of {len(messages)} messages:{shown}")
    return error


class MessageTexts:
    """Messages as text, with their events, as their types were declared in hellos."""

    def __init__(self, messages: Iterable[Message]) -> None:
        self._types: dict[int, TypeDecl] = {}
        for message in messages:
            for header, _ in _frames(message):
                if isinstance(header, wire.Hello):
                    self._types |= {each.fingerprint: each for each in header.types}

    def __call__(self, message: Message | None, *, other: Message | None = None) -> str:
        """The message as text; of a commit, the rows that are not in an ``other`` one."""
        if message is None:
            return "nothing"
        at, sender, receiver, _ = message
        rows = _rows(message)
        if rows:
            *_, app, _, task, _, _ = unquote(receiver).split("/")
            alike = [] if other is None else _rows(other)
            texts = "; ".join(_row_text(row) for row in sorted(rows) if row not in alike)
            return f"{at:.6f} {sender} commits {task} of {app}: {_short(texts)}"
        said = "; ".join(self._texts(*each) for each in _frames(message))
        return f"{at:.6f} {sender} to {receiver}: {_short(said)}"

    def _texts(self, header: wire.Header, body: memoryview) -> str:
        stream = getattr(header, "stream", "")
        if isinstance(header, wire.Data):
            kinds = [each.fingerprint for each in header.sections]
            order = header.order or bytes(header.count)
            raws = list(zip(order, raws_of(header, body), strict=False))
            events = [self._event(kinds[kind], raw) for kind, raw in raws[:_MOST_EVENTS]]
            more = ["..."] if len(raws) > _MOST_EVENTS else []
            return f"{stream}[{header.partition}] {header.first}: {', '.join(events + more)}"
        if isinstance(header, wire.Verdict):
            upto = ", ".join(f"[{each.partition}] below {each.upto}" for each in header.rulings)
            return f"done of {stream}: {upto}{header.error}"
        if isinstance(header, wire.Watermark):
            return f"watermark of {stream}: {header.millis / 1000}"
        return f"{header.kind} {stream}".rstrip()

    def _event(self, fingerprint: int, raw: bytes) -> str:
        values, declared = _plain(raw), self._types.get(fingerprint)
        if declared is None or not isinstance(values, list):
            return repr(values)
        names = (name for name, *_ in declared.fields)
        fields = ", ".join(f"{n}={value!r}" for n, value in zip(names, values, strict=False))
        return f"{declared.name}({fields})"


def _frames(message: Message) -> Iterator[tuple[wire.Header, memoryview]]:
    if not remote_log.is_commit(message.data):
        for frame in wire.read_envelope(message.data, len(message.data)):
            if isinstance(frame, wire.Frame):
                yield frame.header, frame.body


def _rows(message: Message) -> list[Row]:
    """The rows of a commit, of which those of keys come first if they are sorted."""
    if not remote_log.is_commit(message.data):
        return []
    entry = remote_log.decoded(message.data, message.receiver)
    return entry.rows if isinstance(entry, remote_log.Commit) else []


def _row_text(row: Row) -> str:
    key, value = _readable(row[0][PREFIX_BYTES:]), row[1]
    return f"{key} = {None if value is None else _plain(value)!r}"


def _plain(data: bytes) -> Any:
    try:
        return msgspec.msgpack.decode(data)
    except msgspec.DecodeError:
        return _readable(data)


def _readable(data: bytes) -> str:
    return " ".join(text.decode() for text in re.findall(rb"[ -~]{1,}", data))


def _short(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}..."
