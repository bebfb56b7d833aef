"""``s4 send``: sends events from standard input to a stream.

Rules
- A line is one JSON object, which the node reads as the stream's event type. Empty lines are
  skipped, and so is a byte order mark at the very beginning, which editors on Windows write.
- A line that is not a JSON object is reported with its number and not sent; the others are sent.
- Each wait, for a node that is gone, for room, or at the end, lasts at most ``timeout``.
- At the end every event has its verdict, and refusals are printed. The count of each outcome is
  printed however the command ends, also after an interrupt; then some events may be pending.
"""

from __future__ import annotations

import argparse
import codecs
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import trio

from s4node.cli.arguments import (
    cluster_option,
    folder_option,
    json_option,
    timeout_option,
    to_option,
    utf8,
)
from s4node.cli.output import connecting, counted, report
from s4node.cli.running_apps import Nodes, Reach
from s4node.errors import S4Error, StageBroken, on_one_line
from s4node.events.json_objects import are_objects
from s4node.events.schema import UNREADABLE, JsonText
from s4node.net.client.client import Client
from s4node.net.client.client_stream import ClientStream
from s4node.net.egress.refusal import Refusal

_SHOWN = 20
_CHUNK = 1 << 18
_PROGRESS_SECONDS = 5.0
"""The interval of progress messages at a terminal."""
_PATIENCE_SECONDS = 10.0
"""The wait for the last verdicts that needs no message."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stream", type=utf8, metavar="STREAM", help="an input stream of the app")
    to_option(parser, "where the app listens", "that of your running app which takes the stream")
    cluster_option(parser, "all that run here")
    folder_option(parser, "none: apps that run here")
    parser.add_argument(
        "--type",
        dest="type_name",
        metavar="TYPE",
        default="",
        help="event type, if the stream takes several",
    )
    timeout_option(parser, "connecting, and for each wait for a node that is gone")
    json_option(parser, "print the outcome as a JSON object")
    parser.set_defaults(function=send)


def send(stream: str, to: Nodes, type_name: str, timeout: float, *, as_json: bool) -> int:
    return trio.run(Sending(stream, to.to_send(stream), type_name, timeout, as_json).run)


class Sending:
    """Sends standard input, one JSON object per line, to ``stream``."""

    def __init__(
        self,
        stream: str,
        reach: Reach,
        type_name: str,
        timeout: float,
        as_json: bool,
    ) -> None:
        self._name = stream
        self._addresses, self._credentials = reach
        self._type = type_name
        self._timeout = timeout
        self._as_json = as_json
        self._line = 0
        self._bad = 0
        self._refused: list[Refusal] = []
        self._stream: ClientStream | None = None  # while it is not open there is no outcome
        self._decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])

    async def run(self) -> int:
        """Send until the end of input or an interrupt; returns the exit status."""
        with trio.CancelScope() as scope, _interrupting(scope):
            try:
                await self._send_all()
            finally:
                if self._stream is not None:
                    self._report(self._stream.take_refusals())
                    self._report_outcome(self._stream)
        if scope.cancelled_caught:
            return 130
        return 1 if self._bad or self._refused else 0

    async def _send_all(self) -> None:
        async with (
            connecting(self._addresses, self._timeout) as connected,
            Client(self._addresses, timeout=self._timeout, credentials=self._credentials) as client,
        ):
            stream = await client.stream(self._name)
            connected()
            stream.read_as(self._type)
            self._stream = stream
            if sys.stdin.isatty():
                report(
                    f"sending to {self._name} at {', '.join(self._addresses)}; write one JSON "
                    f"object per line, Ctrl-D ends"
                )
            try:
                await self._pump(stream)
                self._report(await self._flushed(stream))
            except StageBroken as error:
                raise StageBroken(error.fact, "Send pending events again when it runs") from None

    async def _flushed(self, stream: ClientStream) -> list[Refusal]:
        """Wait for the last verdicts, and say so if that takes long."""
        with trio.move_on_after(_PATIENCE_SECONDS):
            return await stream.flush()
        waiting = counted(stream.counts["pending"], "event")
        report(f"{self._name}: still waiting for verdicts of {waiting}; s4 why says what is slow")
        return await stream.flush()

    async def _pump(self, stream: ClientStream) -> None:
        rest = b""
        reported_at = trio.current_time()
        while True:
            chunk = await trio.to_thread.run_sync(_read, abandon_on_cancel=True)
            lines, newline, rest = (rest + chunk).rpartition(b"\n")
            if not chunk:
                lines, newline = rest, b"\n"
            texts = self._objects(lines) if newline else []
            if texts:
                stream.extend_nowait(texts)
                await stream.wait_room()
            if not chunk:
                return
            self._report(stream.take_refusals())
            if sys.stderr.isatty() and trio.current_time() > reported_at + _PROGRESS_SECONDS:
                reported_at = trio.current_time()
                report(f"{self._name}: {stream.counts['admitted']:,} events so far")

    def _objects(self, text: bytes) -> list[JsonText]:
        """The lines of a text that are JSON objects; others are reported, except empty ones."""
        lines = text.split(b"\n")
        if are_objects(text, len(lines)):
            self._line += len(lines)
            return lines
        return [found for line in lines if (found := self._checked(line)) is not None]

    def _checked(self, line: bytes) -> JsonText | None:
        self._line += 1
        if self._line == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        text = line.strip()
        if not text:
            return None
        try:
            self._decoder.decode(text)
        except UNREADABLE as error:
            self._bad += 1
            if self._bad <= _SHOWN:
                report(f"line {self._line} is not a JSON object: {error}")
            return None
        return text

    def _report(self, refusals: list[Refusal]) -> None:
        for refusal in refusals:
            if len(self._refused) < _SHOWN:
                outcome = "shed" if refusal.shed else "refused"
                many = f" ({refusal.count:,} events)" if refusal.count > 1 else ""
                report(f"{outcome}: {on_one_line(refusal.reason)}{many}")
                self._refused.append(refusal)

    def _report_outcome(self, stream: ClientStream) -> None:
        counts = {**stream.counts, "bad lines": self._bad}
        if self._as_json:
            print(json.dumps({"stream": self._name, **counts}))
        else:
            said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
            report(f"{self._name}: {said or 'nothing sent'}")


def _read() -> bytes:
    # not through sys.stdin, which an abandoned thread would keep locked, so that Python cannot end
    try:
        return os.read(sys.stdin.fileno(), _CHUNK)
    except OSError as error:
        raise S4Error(
            f"standard input cannot be read: {error.strerror}; send the rest from a file or a pipe"
        ) from error


@contextmanager
def _interrupting(scope: trio.CancelScope) -> Iterator[None]:
    """Have Ctrl-C cancel ``scope`` between two steps, so that the counts are correct."""
    token = trio.lowlevel.current_trio_token()
    before = signal.signal(signal.SIGINT, lambda *_: token.run_sync_soon(scope.cancel))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
