"""The frames of one partition of a node's log, for a thread without trio.

Rules
- Frames are fetched as by every other reader (``net.client.reading``), but in a thread of their
  own: a window ahead, while the caller decodes. After a lost connection reading resumes.
- A node that sends nothing for ``patience`` seconds is an error that says why.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress

import trio

from s4node import tokens
from s4node.errors import ConnectionRefused
from s4node.events.event import GenericEvent
from s4node.net.certificates.credentials import Credentials
from s4node.net.client.reader_link import ReaderLink
from s4node.net.client.reading import Arrived, Lost, Reading
from s4node.net.transport.network import why_silent

_WINDOW = 131_072
_WINDOW_BYTES = 16 << 20
_ACKNOWLEDGE = 8  # frames


class PartitionFrames:
    """The frames of one partition from the offset ``first`` on, to be read with ``for`` in
    ``with``. ``epoch`` is that of the offset, or 0."""

    def __init__(
        self,
        address: str,
        patience: float,
        stream: str,
        partition: int,
        first: int,
        epoch: int,
        credentials: Credentials | None = None,
    ) -> None:
        self._address = address
        self._patience = patience
        self._credentials = credentials
        self._arrived: queue.SimpleQueue[Arrived | Lost | BaseException] = queue.SimpleQueue()
        self._reading = Reading(
            stream,
            f"spark-{tokens.fresh(6)}",
            (GenericEvent,),
            {partition: first},
            window=_WINDOW,
            window_bytes=_WINDOW_BYTES,
            others=True,
            deliver=self._arrived.put,
            epochs={partition: epoch} if epoch else {},
        )
        self._reported = False
        self._stop: trio.Event
        self._token: trio.lowlevel.TrioToken
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="s4-log-reader", daemon=True)

    def __enter__(self) -> PartitionFrames:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._stop.set)
        self._thread.join()

    def __iter__(self) -> Iterator[Arrived]:
        waiting = 0
        while True:
            try:
                arrived = self._arrived.get(timeout=self._patience)
            except queue.Empty:
                raise self._silent() from None
            if isinstance(arrived, Lost):
                raise arrived.error
            if isinstance(arrived, BaseException):
                raise arrived
            yield arrived
            waiting += 1
            if waiting == _ACKNOWLEDGE or self._arrived.empty():
                waiting = 0
                self._acknowledge(arrived)

    def _acknowledge(self, arrived: Arrived) -> None:
        def passed() -> None:
            self._reading.acknowledge(arrived.place, arrived.end)
            self._link.wake()

        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(passed)

    def _silent(self) -> ConnectionRefused:
        why = trio.run(why_silent, self._address, "", self._credentials)
        return ConnectionRefused(
            f"nothing of stream {self._reading.stream!r} came from {self._address} within "
            f"{self._patience:g} s; {why or 'a node answers there now: try again'}"
        )

    # -- in the thread -------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self._arrived.put(error)
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._stop = trio.Event()
        self._link = ReaderLink(self._address, self._take_news, self._credentials)
        async with trio.open_nursery() as nursery:
            await nursery.start(self._link.run)
            self._link.add(self._reading)
            self._ready.set()
            await self._stop.wait()
            nursery.cancel_scope.cancel()

    def _take_news(self) -> None:
        if self._reading.error is not None and not self._reported:
            self._reported = True
            self._arrived.put(self._reading.error)
