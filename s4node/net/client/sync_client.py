"""The synchronous client: the trio client, run in its own thread.

Rules
- The calling thread only appends; the client's thread sends. The caller needs no trio, so the
  client works in scripts, notebooks and Spark's Python workers.
- A call returns once its events are taken; it blocks while the queue is full, by events or by
  bytes. ``flush`` waits for every verdict.
- Errors are raised in the calling thread without the traceback of the client's thread.
- One thread at a time may use a stream, and a forked process may not.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import trio

from s4node.errors import S4Error, StageClosed, leaves
from s4node.events.copies import copied
from s4node.events.keys import KeySpec
from s4node.net.certificates.credentials import Credentials
from s4node.net.client.client import Client, warn_of, why_given_up
from s4node.net.client.client_stream import ClientStream
from s4node.net.client.subscription import Place, Subscription, not_open
from s4node.net.egress.refusal import Refusal
from s4node.net.transport import fork_guard
from s4node.offsets.startpoint import Startpoint

R = TypeVar("R")


class SyncClient:
    """A connection to the node at ``address``; see :class:`s4node.Client` for the arguments.

    ::

        with SyncClient("tcp://127.0.0.1:12000") as client:
            clicks = client.stream("clicks")
            clicks.send(Click("joe"))
            refused = clicks.flush()
            with client.subscribe("totals") as totals:
                for total in totals:
                    ...
    """

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        producer: str = "",
        timeout: float = 30.0,
        queue_size: int = 32_768,
        credentials: Credentials | None = None,
    ) -> None:
        self._arguments = (address, producer, timeout, queue_size, credentials)
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._client: Client
        self._token: trio.lowlevel.TrioToken
        self._stop: trio.Event
        self._nursery: trio.Nursery
        self._streams: dict[str, SyncStream] = {}
        self._abandon = ""

    def __enter__(self) -> SyncClient:
        self._thread = threading.Thread(target=self._run, name="s4-client", daemon=True)
        self._thread.start()
        self._started.wait()
        self._raise_failure()
        return self

    def __exit__(self, kind: object, value: BaseException | None, traceback: object) -> None:
        self._abandon = why_given_up(value)
        try:
            if not self._abandon and self._failure is None:
                warn_of(self._flush(last=True))
        except BaseException as error:  # the client would wait for the same again
            self._abandon = f"flush raised {type(error).__name__}"
            raise
        finally:
            thread, self._thread = self._thread, None
            if thread is not None and not fork_guard.forked:  # a fork may hold its lock for ever
                with suppress(trio.RunFinishedError):
                    self._token.run_sync_soon(self._stop.set)
                thread.join()
        if not self._abandon:
            self._raise_failure()

    def stream(
        self,
        name: str,
        *,
        key: KeySpec | None = None,
        types: Sequence[type] | type = (),
        again: bool = False,
    ) -> SyncStream:
        """Open the input stream ``name`` of the app; see :meth:`s4node.Client.stream`."""
        if name not in self._streams:

            async def opened() -> ClientStream:
                return await self._client.stream(name, key=key, types=types, again=again)

            self._streams[name] = SyncStream(self, self.call(opened))
        return self._streams[name]

    def subscribe(
        self,
        stream: str,
        *,
        types: Sequence[type] | type = (),
        start: Startpoint | Mapping[int, int] | None = None,
        queue_size: int = 10_000,
    ) -> SyncSubscription:
        """Read ``stream`` with ``for`` in ``with``; see :meth:`s4node.Client.subscribe`."""
        return SyncSubscription(self, stream, types, start, queue_size)

    def flush(self) -> list[Refusal]:
        """Wait until every event has its verdict; see :meth:`s4node.Client.flush`."""
        return self._flush()

    def _flush(self, *, last: bool = False) -> list[Refusal]:
        async def flushed() -> list[Refusal]:
            for stream in self._streams.values():
                with stream._raised_later():  # the client's flush raises it after the other streams
                    await stream._carry()
            return await (self._client._last_flush() if last else self._client.flush())

        return self.call(flushed)

    def call(self, function: Callable[..., Awaitable[R]], *arguments: Any) -> R:
        """Run an async function in the client's thread and wait for it."""
        token = self._trio_token()
        try:
            return trio.from_thread.run(function, *arguments, trio_token=token)
        except (trio.RunFinishedError, trio.Cancelled):
            failure: BaseException = StageClosed("the client has stopped; open another one")
            failure, self._failure = self._failure or failure, None
        except (S4Error, BaseExceptionGroup) as error:
            failure = error
        failure = _plain(failure)
        raise failure from failure.__cause__

    def soon(self, function: Callable[[], None]) -> None:
        """Run a function in the client's thread soon; several calls may run it once."""
        self._trio_token().run_sync_soon(function, idempotent=True)

    def _trio_token(self) -> trio.lowlevel.TrioToken:
        """The token of trio in the client's thread; raises StageClosed if the client is closed."""
        fork_guard.check()
        if self._thread is None:
            raise StageClosed("the client is closed; use it in 'with'")
        return self._token

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _main(self) -> None:
        address, producer, timeout, queue_size, credentials = self._arguments
        async with Client(
            address,
            producer=producer,
            timeout=timeout,
            queue_size=queue_size,
            credentials=credentials,
        ) as client:
            self._client = client
            self._token = trio.lowlevel.current_trio_token()
            self._stop = trio.Event()
            async with trio.open_nursery() as self._nursery:
                self._started.set()
                await self._stop.wait()
                self._nursery.cancel_scope.cancel()
            if self._abandon:
                unsent = {name: len(each._waiting) for name, each in self._streams.items()}
                client.abandon(self._abandon, unsent)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = _plain(self._failure), None
            raise failure from failure.__cause__


def _plain(error: BaseException) -> BaseException:
    """An error of the client's thread, without its traceback if it is one of ours."""
    found = leaves(error)
    ours = [leaf for leaf in found if isinstance(leaf, S4Error)]
    return ours[0].with_traceback(None) if len(ours) == len(found) else error


class SyncStream:
    """One stream of a synchronous client. Get it from :meth:`SyncClient.stream`."""

    def __init__(self, client: SyncClient, stream: ClientStream) -> None:
        self._client = client
        self._stream = stream
        self._known, self._changing = stream._known, stream._changing
        self._waiting: deque[Any] = deque()
        self._full = False
        self._hand_over = 1  # how many may wait here before a blocking call

    @property
    def partitions(self) -> int:
        """The number of partitions of the app."""
        return self._stream.partitions

    @property
    def counts(self) -> dict[str, int]:
        """Counts of events; see :attr:`s4node.ClientStream.counts`."""
        return self._stream.counts

    def read_as(self, type_name: str = "") -> None:
        """Send JSON objects as ``bytes``; see :meth:`s4node.ClientStream.read_as`."""

        async def read() -> None:
            self._stream.read_as(type_name)

        self._client.call(read)

    def resume_at(self, partition: int = 0) -> int:
        """The committed events of earlier lives; see :meth:`s4node.ClientStream.resume_at`."""
        return self._client.call(self._stream.resume_at, partition)

    def send(self, event: Any) -> None:
        """Send one event; blocks while the queue is full."""
        cls = event.__class__
        if cls not in self._known:
            self._client.call(self._admit, (event,))
        if cls in self._changing:
            event = copied(event)
        waiting = self._waiting
        waiting.append(event)
        if self._full or len(waiting) >= self._hand_over:
            self._client.call(self._carry)
        elif len(waiting) == 1:
            self._client.soon(self._pull)

    def send_many(self, events: Iterable[Any]) -> None:
        """Send events in order, all or none; see :meth:`s4node.ClientStream.send_many`."""
        self._client.call(self._carry, list(events))

    def watermark(self, time: float) -> None:
        """Say that no later event is older; see :meth:`s4node.ClientStream.watermark`."""

        async def passed_on() -> None:
            await self._carry()
            self._stream.watermark(time)

        self._client.call(passed_on)

    def end(self) -> None:
        """Have the nodes forget this producer's id; see :meth:`s4node.ClientStream.end`."""
        self._client.soon(self._stream.end)

    def flush(self) -> list[Refusal]:
        """Wait until every event sent so far has its verdict; return the refused and shed ones."""

        async def flushed() -> list[Refusal]:
            await self._carry()
            return await self._stream.flush()

        return self._client.call(flushed)

    # -- in the client's thread --------------------------------------------------------------

    async def _admit(self, events: Sequence[Any]) -> None:
        self._stream._admit(events)

    def _taken(self) -> list[Any]:
        taken = []
        while self._waiting:  # until it is empty, so that the next append sees that it is the first
            taken.append(self._waiting.popleft())
        return taken

    def _pull(self) -> None:
        """Take waiting events without waiting for room; later calls wait for it."""
        raised = self._stream.raised
        try:
            self._stream._check_open()
        except S4Error:
            self._stream.raised = raised
            self._full = True  # so that the next call raises it
            return
        self._stream.extend_nowait(self._taken())
        self._note_pressure()

    @contextmanager
    def _raised_later(self) -> Iterator[None]:
        """Suppress an error of the stream, and have it raised later if events were sent since."""
        raised = "" if self._waiting else self._stream.raised
        try:
            yield
        except S4Error:
            self._stream.raised = raised

    async def _carry(self, more: Sequence[Any] = ()) -> None:
        """Take waiting events and ``more``, and wait for room.

        Raises if the stream has failed; then no events wait any more.
        """
        try:
            self._stream._check_open()
        except S4Error:
            self._waiting.clear()
            raise
        more = self._stream._admit(more)
        await self._stream.send_owned([*self._taken(), *more])
        self._note_pressure()

    def _note_pressure(self) -> None:
        self._full = self._stream.pressure >= 1
        self._hand_over = 2 * self._stream.breath


class SyncSubscription:
    """A stream to read with ``for`` inside ``with``; get it from :meth:`SyncClient.subscribe`.

    Iterating waits for the next event and never ends by itself; it raises StageClosed after the
    block, or the client's block, was left.
    """

    def __init__(
        self,
        client: SyncClient,
        stream: str,
        types: Sequence[type] | type,
        start: Startpoint | Mapping[int, int] | None,
        queue_size: int,
    ) -> None:
        self._client = client
        self._arguments = (stream, types, start, queue_size)
        self._closed = trio.Event()
        self._entered: Subscription | None = None

    @property
    def _reader(self) -> Subscription:
        if self._entered is None:
            raise not_open(self._arguments[0])
        return self._entered

    @property
    def missed(self) -> int:
        """Events not sent because the reader was slow, or because no frame can hold them."""
        return self._look(lambda reader: reader.missed)

    @property
    def interruptions(self) -> int:
        """The number of times that a connection to an app, and events meanwhile, were lost."""
        return self._look(lambda reader: reader.interruptions)

    @property
    def place(self) -> Place:
        """The place of the last event."""
        return self._reader.place

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each partition, for ``start``; empty for a live stream."""
        return self._look(lambda reader: reader.positions)

    def __enter__(self) -> SyncSubscription:
        self._client.call(self._open)
        return self

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        with suppress(StageClosed, trio.RunFinishedError):  # the client was left before
            self._client.soon(self._closed.set)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        reader = self._reader
        while not reader.buffered:
            self._client.call(reader.fetch)
        return reader.next_decoded()

    def _look(self, at: Callable[[Subscription], R]) -> R:
        async def looked() -> R:
            return at(self._reader)

        return self._client.call(looked)

    # -- in the client's thread --------------------------------------------------------------

    async def _open(self) -> None:
        failure = await self._client._nursery.start(self._hold)
        if failure is not None:
            raise failure

    async def _hold(self, task_status: trio.TaskStatus[BaseException | None]) -> None:
        """Keep the subscription open, in its own trio task, until the block is left."""
        stream, types, start, queue_size = self._arguments
        opened = False
        try:
            self._entered = self._client._client.subscribe(
                stream, types=types, start=start, queue_size=queue_size
            )
            async with self._entered:
                opened = True
                task_status.started(None)
                await self._closed.wait()
        except S4Error as error:
            if opened:
                raise
            task_status.started(error)
