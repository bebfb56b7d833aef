"""``s4 send``: events from standard input to a stream.

Rules
- A line is one JSON object; the node reads it as the stream's event type. Empty lines are skipped.
- A line that is no JSON object is reported with its number and not sent; the others are.
- At the end every event has its verdict, and what was refused is named.
"""

from __future__ import annotations

import json
import os
import sys

import msgspec
import trio

from s4node.comm.client import Client, ClientStream
from s4node.comm.outbox import Refusal
from s4node.ops.serve import exit_status
from s4node.schema import JsonText

_SHOWN = 20
_CHUNK = 1 << 16
_PROGRESS_SECONDS = 5.0
"""How often people are told how far it is."""


def send(stream: str, address: str, type_name: str, timeout: float, *, as_json: bool) -> int:
    """Send standard input; returns the exit status."""
    try:
        return trio.run(Sending(stream, address, type_name, timeout, as_json).run)
    except BaseException as error:
        return exit_status(error)


class Sending:
    """Sends standard input, a JSON object a line, to ``stream`` at ``address``."""

    def __init__(
        self, stream: str, address: str, type_name: str, timeout: float, as_json: bool
    ) -> None:
        self._name = stream
        self._address = address
        self._type = type_name
        self._timeout = timeout
        self._as_json = as_json
        self._line = 0
        self._bad = 0
        self._refused: list[Refusal] = []
        self._decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])

    async def run(self) -> int:
        """Send until the end of input; returns the exit status."""
        async with Client(self._address, timeout=self._timeout) as client:
            stream = await client.stream(self._name)
            stream.read_as(self._type)
            if sys.stdin.isatty():
                print(f"sending to {self._name} at {self._address}; a JSON object a line, "
                      f"Ctrl-D ends", file=sys.stderr)  # fmt: skip
            await self._pump(stream)
            self._report(await stream.flush())
            return self._summary(stream)

    async def _pump(self, stream: ClientStream) -> None:
        rest = b""
        told = trio.current_time()
        stdin = sys.stdin.fileno()
        while True:
            # not sys.stdin: a thread that is abandoned in it holds a lock that Python's end needs
            chunk = await trio.to_thread.run_sync(os.read, stdin, _CHUNK, abandon_on_cancel=True)
            *lines, rest = (rest + chunk).split(b"\n")
            if not chunk:
                lines, rest = [rest], b""
            texts = [text for line in lines if (text := self._checked(line)) is not None]
            if texts:
                await stream.send_many(texts)
            if not chunk:
                return
            self._report(stream.take_refusals())
            if sys.stderr.isatty() and trio.current_time() > told + _PROGRESS_SECONDS:
                told = trio.current_time()
                print(f"{self._name}: {stream.counts['admitted']:,} events so far",
                      file=sys.stderr)  # fmt: skip

    def _checked(self, line: bytes) -> JsonText | None:
        self._line += 1
        text = line.strip()
        if not text:
            return None
        try:
            self._decoder.decode(text)
        except (msgspec.MsgspecError, RecursionError) as error:
            self._bad += 1
            if self._bad <= _SHOWN:
                print(f"line {self._line} is no JSON object: {error}", file=sys.stderr)
            return None
        return JsonText(text)

    def _report(self, refusals: list[Refusal]) -> None:
        for refusal in refusals:
            if len(self._refused) < _SHOWN:
                word = "shed" if refusal.shed else "refused"
                many = f" ({refusal.count:,} events)" if refusal.count > 1 else ""
                print(f"{word}: {refusal.reason}{many}", file=sys.stderr)
                self._refused.append(refusal)

    def _summary(self, stream: ClientStream) -> int:
        counts = {**stream.counts, "bad lines": self._bad}
        if self._as_json:
            print(json.dumps({"stream": self._name, **counts}))
        else:
            said = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
            print(f"{self._name}: {said or 'nothing sent'}", file=sys.stderr)
        return 1 if self._bad or self._refused else 0
