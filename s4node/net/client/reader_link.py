"""The dialling side of reading: carries readings and questions to one node, and events back.

Rules
- At most ``wire.MAX_QUESTIONS`` questions wait for the node's answer; further ones wait here.
- Each reading sends a hello after every connect, with its positions.
- A lost connection is not an error: nng dials again. Questions with ``again`` are then repeated;
  other questions fail, because it is unknown whether they were answered. What came before the loss
  is read first.
- A drain is answered with a drain, for which the node waits before it closes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import trio

from s4node.errors import ConnectionRefused, S4Error, StageBroken
from s4node.logger import get_logger
from s4node.net.certificates.credentials import Credentials
from s4node.net.client.reading import Reading, fault_of
from s4node.net.transport.dialled_peer import DialledPeer
from s4node.net.transport.network import DialledPipe, why_silent
from s4node.net.wire import frame as wire

log = get_logger("s4node.net")


class _Asked:
    def __init__(self, query: wire.Query, again: bool) -> None:
        self.frame = wire.encode_frame(query)
        self.again = again
        self.sent = False
        self.values: dict[str, Any] = {}
        self.error: S4Error | None = None
        self.done = trio.Event()

    def finish(self, error: S4Error | None, values: dict[str, Any] | None = None) -> None:
        self.error, self.values = error, values or {}
        self.done.set()


class ReaderLink:
    """A connection to the node at ``address`` for any number of readings.

    ``on_news`` is called when frames have arrived, and when the peer has come or gone.
    """

    def __init__(
        self, address: str, on_news: Callable[[], None], credentials: Credentials | None
    ) -> None:
        self.address = address
        self._dialled = DialledPeer(address, log, credentials)
        self.answers = self._dialled.answers
        self._on_news = on_news
        self._readings: dict[str, Reading] = {}
        self._asked: dict[int, _Asked] = {}
        self._unsent: deque[int] = deque()  # questions, by number, including abandoned ones
        self._unanswered: set[int] = set()  # those with the node, including abandoned ones
        self._last_id = 0
        self._control: list[bytes] = []
        self._socket: DialledPipe | None = None
        self._writes = trio.lowlevel.ParkingLot()

    @property
    def connected(self) -> bool:
        return self._socket is not None and self._socket.connected

    def add(self, reading: Reading) -> None:
        self._readings[reading.reader] = reading
        if self.connected:
            self._control.append(reading.hello_frame())
            self.wake()

    def remove(self, reading: Reading) -> None:
        if self._readings.pop(reading.reader, None) is not None and self.connected:
            reading.unsubscribe()
            self._control += reading.take_said()
            self.wake()

    def wake(self) -> None:
        self._writes.unpark_all()

    async def ask(
        self, question: str, arguments: Mapping[str, Any], timeout: float, *, again: bool = True
    ) -> dict[str, Any]:
        """Ask the node a question and return its answer; raises the error that it answers.

        Raises ConnectionRefused if there is no answer within ``timeout`` seconds, and StageBroken
        if the connection was lost meanwhile and the question is not to be repeated (``again``).
        """
        self._last_id += 1
        number = self._last_id
        asked = self._asked[number] = _Asked(wire.Query(number, question, dict(arguments)), again)
        try:
            self._unsent.append(number)
            self.wake()
            with trio.move_on_after(timeout):
                await asked.done.wait()
        finally:
            del self._asked[number]
        if not asked.done.is_set():
            why = await why_silent(self.address, self.answers.stranger, self._dialled.credentials)
            raise ConnectionRefused(
                f"no answer to {question!r} from {self.address} within {timeout:g} s; "
                f"{why or 'a node answers there now: try again'}"
            )
        if asked.error is not None:
            raise asked.error
        return asked.values

    @property
    def is_carried(self) -> bool:
        return self._socket is not None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._socket = self._dialled.dial(self)
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._socket.run)
                nursery.start_soon(self._write)
                while True:
                    await self._socket.wait_readable()
                    self._take_arrived(self._socket)
                    self._on_news()
        finally:
            socket, self._socket = self._socket, None
            self.set_connected(False)
            await socket.close()

    def set_connected(self, connected: bool) -> None:
        if not connected:
            if self._socket is not None:
                self._take_arrived(self._socket)
            self.answers.disconnected()
        self._control.clear()
        self._unanswered.clear()
        for reading in self._readings.values():
            reading.disconnected()
        for asked in list(self._asked.values()):
            if asked.sent and not asked.again:
                asked.finish(
                    StageBroken(
                        f"the connection to {self.address} was lost before the answer came; check "
                        f"whether it was done, and repeat it if not"
                    )
                )
        self._unsent = deque(n for n, asked in self._asked.items() if not asked.done.is_set())
        if connected:
            self._control += [reading.hello_frame() for reading in self._readings.values()]
        self._on_news()
        self.wake()

    async def _write(self) -> None:
        assert self._socket is not None
        while True:
            for reading in self._readings.values():
                if reading.said:
                    self._control += reading.take_said()
            if self.connected:
                self._control += self._take_questions()
            if not self._control or not self.connected:
                await self._writes.park()
                continue
            frames = list(self._control)
            with suppress(StageBroken):
                if not self._socket.send_nowait(wire.envelope(frames)):
                    await self._socket.wait_writable()
                    continue
            del self._control[: len(frames)]

    def _take_questions(self) -> list[bytes]:
        frames = []
        while self._unsent and len(self._unanswered) < wire.MAX_QUESTIONS:
            number = self._unsent.popleft()
            asked = self._asked.get(number)
            if asked is not None:
                asked.sent = True
                self._unanswered.add(number)
                frames.append(asked.frame)
        return frames

    def _take_arrived(self, socket: DialledPipe) -> None:
        while (data := socket.receive_nowait()) is not None:
            for frame in self._dialled.frames(socket, data):
                self._take_frame(frame)

    def _take_frame(self, frame: wire.Frame) -> None:
        header = frame.header
        if isinstance(header, wire.Data):
            for reading in self._of(header.stream, header.producer):
                problem = reading.on_data(header, frame.body)
                if problem:
                    self._dialled.bad(problem)
        elif isinstance(header, wire.Hello):
            for reading in self._greeted(header):
                reading.on_hello(header)
        elif isinstance(header, wire.Idle):
            for reading in self._of(header.stream, header.producer):
                reading.on_idle(header)
        elif isinstance(header, wire.Answer) and header.id == wire.NOTICE:
            log.warning("the node reads more slowly", address=self.address, reason=header.error)
        elif isinstance(header, wire.Answer):
            self._unanswered.discard(header.id)
            if self._unsent:
                self.wake()
            asked = self._asked.get(header.id)
            if asked is not None:
                error = fault_of(header.error, header.headers) if header.error else None
                asked.finish(error, header.values)
        elif isinstance(header, wire.Drain):
            self._control.append(wire.encode_frame(wire.Drain("stopped reading")))
            self.wake()
        elif isinstance(header, wire.Verdict) and header.error:
            log.error("the node refused a frame", address=self.address, reason=header.error)
            self._unanswered.clear()
            for asked in self._asked.values():  # the node does not know questions
                if asked.sent:
                    asked.finish(ConnectionRefused(f"{self.address}: {header.error}"))

    def _of(self, stream: str, sender: str) -> list[Reading]:
        """The readings that a frame is for: the named reader, or all readers of a live stream.

        Frames for a reader that has gone are dropped.
        """
        found = self._readings.get(sender)
        if found is not None:
            return [found]
        return [each for each in self._readings.values() if each.stream == stream and each.live]

    def _greeted(self, hello: wire.Hello) -> list[Reading]:
        reader = hello.headers.get(wire.READER)
        if reader is not None:
            found = self._readings.get(str(reader))
            return [] if found is None else [found]
        return [each for each in self._readings.values() if each.stream == hello.stream]
