"""Events that requests bring: sent as by any other client, and answered once they are taken.

Rules
- 200: all are committed, on a durable stream or one of a log. 202: all are processed, on another;
  they are lost if their owner dies. 422: some are refused. 429, 503: none was taken. 504: some may
  have been.
- With an ``Idempotency-Key`` the request is a producer by itself, whose id is a hash of the caller
  and the key. Nodes know how much of it they have committed, so a repetition counts once; and they
  know a hash of its events, so the same key with others is refused. Requests with one key wait for
  each other here; of two at different nodes one may get no verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakValueDictionary

import trio

from s4node.errors import ConnectionRefused, EventError, S4Error, StageBroken
from s4node.http import bodies
from s4node.http.bodies import Found, Problem
from s4node.http.messages import Answer, Request
from s4node.logger import get_logger
from s4node.net.certificates.credentials import Credentials
from s4node.net.client.client import Client
from s4node.net.client.client_stream import ClientStream
from s4node.net.wire import frame as wire

log = get_logger("s4node.http")

KEY = "idempotency-key"

_OPEN_SECONDS = 10.0
_TAKEN_SECONDS = 5.0
"""If nothing has left after so long, nothing is taken."""
_COMMITTED_SECONDS = 30.0
_SLICE = 4096
"""The events that are checked, or given to a stream, before others have their turn."""
_MOST_KEY = 255
_MOST_IDLE = 32
"""Streams that stay open for the next request, each."""
AWAY = "no node takes the stream now"


class Reach(NamedTuple):
    """Where events go: the addresses of nodes, and the credentials for them."""

    addresses: Callable[[], Sequence[str]]
    credentials: Credentials | None


@dataclass(eq=False)
class _Sender:
    """An open stream, for one request at a time; ``over`` ends it."""

    stream: ClientStream
    type_name: str = ""
    over: trio.Event = field(default_factory=trio.Event)


class Sending:
    """Sends what requests bring to the streams of the cluster at ``reach``; :meth:`run` it."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._idle: dict[str, list[_Sender]] = {}
        self._by_key: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    async def post(self, request: Request) -> Answer:
        found = bodies.events_in(request)
        if isinstance(found, Answer):
            return found
        key = request.headers.get(KEY, "")
        if KEY in request.headers and not 0 < len(key) <= _MOST_KEY:
            return Answer(400, f"an Idempotency-Key has 1 to {_MOST_KEY} characters\n")
        if not key:
            return await self._post(request, found)
        batch = bodies.id_of(request.caller, key)
        lock = self._by_key.setdefault(batch, trio.Lock())
        with trio.move_on_after(_COMMITTED_SECONDS) as waiting:
            await lock.acquire()
        if waiting.cancelled_caught:
            return bodies.try_again(504, "another request with this key has no answer yet")
        try:
            return await self._post(request, found, batch, bodies.hash_of(found))
        finally:
            lock.release()

    async def _post(
        self, request: Request, found: Found, batch: str = "", content: str = ""
    ) -> Answer:
        try:
            sender = await self._opened(request.parameters["stream"], batch, content)
        except ConnectionRefused as error:
            return _not_opened(error)
        if sender is None:
            return bodies.try_again(503, AWAY)
        try:
            answer = await _sent(sender, request, found, has_key=bool(batch))
        except BaseException:
            sender.over.set()
            raise
        idle = self._idle.setdefault(sender.stream.name, [])
        if batch or answer.status >= 429 or sender.stream.raised or len(idle) >= _MOST_IDLE:
            sender.over.set()
        else:
            idle.append(sender)
        return answer

    async def _opened(self, name: str, batch: str, content: str) -> _Sender | None:
        """An open stream; None while no node is known. Raises ConnectionRefused."""
        idle = self._idle.get(name, [])
        while idle and not batch:
            sender = idle.pop()
            if not sender.stream.is_failed:
                return sender
            sender.over.set()
        addresses = self._reach.addresses()
        if not addresses or self._nursery is None:
            return None
        client = Client(
            addresses,
            producer=wire.BATCH + batch if batch else "",
            batch=content,
            timeout=_OPEN_SECONDS,
            credentials=self._reach.credentials,
        )
        opened: _Sender = await self._nursery.start(_keep, client, name)
        return opened


async def _keep(client: Client, name: str, task_status: trio.TaskStatus[_Sender]) -> None:
    """Keep a stream open until its sender is over; raises ConnectionRefused before."""
    sender: _Sender | None = None
    try:
        async with client:
            stream = await client.stream(name, again=client.producer.startswith(wire.BATCH))
            sender = _Sender(stream)
            task_status.started(sender)
            await sender.over.wait()
            client.abandon()
    except S4Error as error:
        if sender is None:
            raise
        log.warning("a stream to which HTTP sends has failed", stream=name, reason=str(error))


async def _sent(sender: _Sender, request: Request, found: Found, *, has_key: bool) -> Answer:
    stream = sender.stream
    if has_key and not stream.is_durable:
        return Answer(400, "an Idempotency-Key is for durable streams and those of a log\n")
    kind = bodies.type_of(stream.types or (bodies.generic(),), request.query.get("type", ""))
    if isinstance(kind, Answer):
        return kind
    texts, problems = found.texts, list(found.problems)
    for first in range(0, len(texts), _SLICE):
        problems += bodies.checked(found, kind, first, first + _SLICE)
        await trio.lowlevel.checkpoint()
    if problems or not texts:
        return bodies.refused(sorted(problems) or [Problem(1, "there is no event")], kind=kind)
    try:
        if kind.name != sender.type_name:
            stream.read_as(kind.name, by_key=True)
            sender.type_name = kind.name
        if has_key:  # a node that knows other events of the key refuses these before any is sent
            with trio.move_on_after(_TAKEN_SECONDS) as patience:
                await stream.wait_open()
            if patience.cancelled_caught:
                return bodies.try_again(503, AWAY)
        for first in range(0, len(texts), _SLICE):
            stream.extend_nowait(texts[first : first + _SLICE])
            await trio.lowlevel.checkpoint()
        return await _settled(stream, len(texts))
    except StageBroken:
        return _unknown(stream)
    except EventError as error:
        return _refused_as(stream.refused_as, str(error))


async def _settled(stream: ClientStream, count: int) -> Answer:
    """The answer once all events have their verdicts, or do not get them in time."""
    refusals = None
    for seconds in (_TAKEN_SECONDS, _COMMITTED_SECONDS - _TAKEN_SECONDS):
        with trio.move_on_after(seconds):
            refusals = await stream.flush()
        if refusals is not None:
            break
        if stream.unsent_events == count:
            return bodies.try_again(429, "the stream is full: nothing was taken")
    else:
        return _unknown(stream)
    shed = sum(each.count for each in refusals if each.shed)
    if shed == count:
        return bodies.try_again(429, f"nothing was taken: {refusals[0].reason}")
    if refusals:
        lost = sum(each.count for each in refusals)
        return bodies.refused([Problem(0, each.reason) for each in refusals], count - lost)
    return bodies.taken(stream.name, count, durable=stream.is_durable)


def _unknown(stream: ClientStream) -> Answer:
    left = stream.counts["pending"]
    return bodies.try_again(
        504,
        f"{left} events have no answer, and may be taken: s4 why and s4 status say what holds them "
        f"up; repeat with the same Idempotency-Key",
    )


def _not_opened(error: ConnectionRefused) -> Answer:
    text = str(error)
    if error.refused_as or "no answer within" not in text:
        return _refused_as(error.refused_as, text)
    return bodies.try_again(503, AWAY)


def _refused_as(kind: str, text: str) -> Answer:
    match kind:
        case wire.NO_STREAM:
            return Answer(404, f"{text}\n")
        case wire.OTHER_BATCH:
            return Answer(422, "the Idempotency-Key was used for other events\n")
        case wire.LIMIT:
            return bodies.try_again(429, text, 60)
    return bodies.try_again(504, f"{text}; another request with this key may be in progress")
