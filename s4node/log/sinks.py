"""The sinks of a log: stages their attempts, and publishes what a decision names.

Rules
- A sink is a writer and its stream: if a copy of a query writes to another stream, the batches of
  one stream say nothing about the other.
- A sink has a spool: a stream of its own with the partitions and the key of its target. Producers
  append to it as to any stream; lists of streams do not have it.
- ``publish`` counts, decides (:mod:`s4node.log.sink.decision`), carries, and then answers. At a
  start, every batch that is decided and not carried to its end is carried on.
- The attempts of a batch may be too many for one question, so they are named in parts.
- A batch is carried partition by partition, in pieces: while one is on its way to disk, others who
  append wait for that piece at most.
- After a batch, the decided part of the spool is deleted; the spool of a sink that ends is dropped.
  So is one that got nothing for ``s4.log.staged.expiry``, unless its batch is being carried.
- An attempt may begin after the end of its write, because Spark ends tasks later. If nobody else
  will use the sink, it is refused.
- Of one sink, one request is handled at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import trio

from s4node import clocks, threads
from s4node.errors import LimitReached, S4Error, SinkError
from s4node.failpoints import passing
from s4node.log.hosted import HostedStream
from s4node.log.hosted_streams import HostedStreams
from s4node.log.partition.ledger import Appended
from s4node.log.partition.partition_rows import StagedRow
from s4node.log.partition.retention import RESERVE_BYTES
from s4node.log.sink.decision import Attempt, Carrying, NamedAttempts, Sink, decide, is_done, tally
from s4node.log.sink.sink_file import SinkFile
from s4node.log.store import SPOOL
from s4node.logger import get_logger
from s4node.net.wire import frame as wire

log = get_logger("s4node.log")

PIECE_BYTES = 512 << 10
"""The approximate bytes of a piece; two may be on their way to disk."""

MAX_SINKS = 10_000
"""The most writers that a log knows."""

_MAX_OVER = 1000
"""The sinks that are over and are remembered for attempts that begin later."""

PRODUCER = "sink:"
"""How the names of sinks as producers of their targets begin."""

_Key: TypeAlias = tuple[str, str]  # the id of a sink, and its stream


class Sinks:
    """The sinks of ``streams``, whose rows are in ``file``. ``expiry`` is in seconds."""

    def __init__(
        self, streams: HostedStreams, file: SinkFile, nursery: trio.Nursery, expiry: float
    ) -> None:
        self.batches = 0
        """How many batches were published since the start."""
        self.events = 0
        """How many events they had."""
        self._streams = streams
        self._file = file
        self._nursery = nursery
        self._expiry = expiry
        self._by_id: dict[str, dict[str, Sink]] = {}  # of each writer, the sinks by stream
        for sink in file.sinks():
            self._by_id.setdefault(sink.id, {})[sink.stream] = sink
        self._turns: WeakValueDictionary[_Key, trio.Lock] = WeakValueDictionary()
        self._named: dict[_Key, NamedAttempts] = {}
        self._last_use: dict[str, float] = {}  # of spools
        self._aborted: set[str] = set()  # spools to drop once nobody is connected
        self._dropping: set[str] = set()
        self._over: dict[_Key, None] = {}  # in the order in which they ended

    @property
    def _sinks(self) -> Iterator[Sink]:
        return (sink for sinks in self._by_id.values() for sink in sinks.values())

    def _find(self, id_: str, stream: str) -> Sink | None:
        return self._by_id.get(id_, {}).get(stream)

    def _turn(self, id_: str, stream: str) -> trio.Lock:
        """The lock of a sink; it lives as long as somebody uses it."""
        return self._turns.setdefault((id_, stream), trio.Lock())

    def _check_new(self, id_: str) -> None:
        """Raise SinkError if there cannot be a sink of this id."""
        if problem := wire.too_long(id_):
            raise SinkError(f"a sink has the name of its producer, but {problem}")
        if id_ not in self._by_id and len(self._by_id) >= MAX_SINKS:
            raise SinkError(
                f"the log has {MAX_SINKS} sinks, and cannot have more; forget those that are over: "
                f"s4 log sinks --forget"
            )

    async def roll_forward(self) -> None:
        """Carry on what was decided before the start."""
        for sink in list(self._sinks):
            if sink.open is not None:
                try:
                    async with self._turn(sink.id, sink.stream):
                        await self._carry(sink, last=False)
                except S4Error as error:
                    log.error(
                        "a decided batch cannot be carried into its stream",
                        sink=sink.id,
                        batch=sink.batch,
                        reason=str(error),
                    )

    # -- requests ------------------------------------------------------------------------------

    async def stage(self, id_: str, stream: str, *, last: bool) -> dict[str, Any]:
        """Where to append an attempt; ``batch`` of the answer is the last one that was decided.
        ``last`` if the sink ends with its batch."""
        target = self._streams.find(stream)
        self._streams.check_open()
        if stream.startswith(SPOOL) or not id_:
            raise SinkError(f"a sink has an id and a stream, not {id_!r} and {stream!r}; give both")
        self._check_new(id_)
        name = spool_of(id_, stream)
        async with self._turn(id_, stream):
            if (id_, stream) in self._over:
                raise SinkError(f"the write {id_} is over; an attempt of it stages nothing")
            other = next((s for s in self._by_id.get(id_, {}).values() if s.stream != stream), None)
            if last and other is not None and other.batch >= 0:
                raise SinkError(
                    f"{id_} is written to stream {other.stream!r} already, and a name counts once "
                    f"for all streams; choose another name for {stream!r}"
                )
            sink = self._find(id_, stream)
            if sink is None:
                sink = Sink(id_, stream)
                await self._put(sink)
            there = self._streams.by_name.get(name)
            if there is not None and sink.open is None:
                shape = (there.routing, len(there.partitions))
                if shape != (target.routing, len(target.partitions)):  # of a former target
                    await self._drop(name)
            spool = await self._streams.create_spool(name, target)
            self._aborted.discard(name)
            self._last_use[name] = trio.current_time()
        return {
            "spool": name,
            "partitions": len(target.partitions),
            "routing": spool.routing,
            "types": target.declared_types,
            "batch": sink.batch,
        }

    async def publish(
        self,
        id_: str,
        stream: str,
        batch: int,
        attempts: Sequence[Attempt],
        *,
        last: bool,
        commit: str = "",
        first: int = 0,
        total: int | None = None,
    ) -> dict[str, Any]:
        """Make a batch visible; ``last`` if the sink ends with it. Answered once it is visible.

        If the batch has a ``total`` of more attempts, these are those from number ``first`` on, as
        ``commit`` names them. The answer is then how many of them are ``known``: go on there.
        """
        began = trio.current_time()
        self._check_new(id_)
        async with self._turn(id_, stream):
            sink = self._find(id_, stream) or Sink(id_, stream)
            if sink.open is not None:
                sink = await self._carry(sink, last=False)
            if is_done(sink, batch):
                if batch < sink.batch:
                    log.warning(
                        "a batch before the last one of its sink is asked for again, and not "
                        "published: the checkpoint of its query is an older copy. Rows that this "
                        "batch did not have before are not in the stream; to write them, begin "
                        "with a new checkpoint where the published rows end",
                        sink=id_,
                        batch=batch,
                        published=sink.batch,
                    )
                if last:
                    await self._end(sink)
                return {"published": False, "events": sink.events if batch == sink.batch else 0}
            if total is not None:
                named = self._named.setdefault((id_, stream), NamedAttempts())
                attempts = named.add(commit, first, attempts)
                if len(attempts) < total:
                    return {"known": len(attempts)}
            decided = await self._decided(sink, batch, attempts)
            passing("sink.staged")
            await self._put(decided)
            passing("sink.decided")
            await self._carry(decided, last=last)
            self._named.pop((id_, stream), None)
            passing("sink.answer")
        seconds = trio.current_time() - began
        self.batches += 1
        self.events += decided.events
        log.info(
            "a batch of a sink is published",
            sink=id_,
            stream=stream,
            batch=batch,
            events=decided.events,
            seconds=round(seconds, 3),
        )
        return {"published": True, "events": decided.events}

    def carried(self, id_: str, stream: str) -> dict[str, Any]:
        """How far the sink has carried its batches, as a number that grows, and why it waits."""
        target = self._streams.by_name.get(stream)
        rows = [
            each.producers.get(PRODUCER + id_) for each in (target.partitions if target else ())
        ]
        carried = sum(row.number for row in rows if row is not None)
        return {"carried": carried, "trouble": self._streams.store.writer.trouble}

    async def abort(self, id_: str, stream: str, *, over: bool) -> dict[str, Any]:
        """Drop what is staged, as soon as nobody appends to it; a decided batch stays. ``over`` if
        nobody will use the sink again."""
        async with self._turn(id_, stream):
            if over:
                self._note_over(id_, stream)
            self._named.pop((id_, stream), None)
            sink, name = self._find(id_, stream), spool_of(id_, stream)
            if sink is None or sink.open is not None:
                return {}
            if self._is_used(name):
                self._aborted.add(name)
            else:
                await self._drop(name)
            if sink.batch < 0:
                await self._remove(sink)
        return {}

    async def end_write(self, id_: str, stream: str) -> dict[str, Any]:
        """Forget a sink that has learned that its last batch is published; an attempt that begins
        later is refused."""
        async with self._turn(id_, stream):
            self._note_over(id_, stream)
            sink = self._find(id_, stream)
            if sink is not None and sink.open is None:
                await self._end(sink)
                await self._remove(sink)
        return {}

    async def forget(self, id_: str) -> dict[str, Any]:
        """Forget the sinks of a writer, with what they have staged: the next batch is published,
        whatever its number."""
        sinks = list(self._by_id.get(id_, {}).values())
        if not sinks:
            raise SinkError(f"the log knows no sink {id_!r}; s4 log sinks shows them")
        for sink in sinks:
            async with self._turn(id_, sink.stream):
                found = self._find(id_, sink.stream)
                if found is not None:
                    await self._end(found)
                    await self._remove(found)
        return {
            "batch": max(sink.batch for sink in sinks),
            "open": any(sink.open is not None for sink in sinks),
        }

    def list(self) -> list[dict[str, Any]]:
        return [
            {
                "sink": sink.id,
                "stream": sink.stream,
                "batch": sink.batch,
                "events": sink.events,
                "total": sink.total,
                "decided_ms": sink.decided_ms,
                "open": sink.open is not None,
                "staged_bytes": self._staged_bytes(spool_of(*sink[:2])),
            }
            for sink in sorted(self._sinks, key=lambda sink: sink[:2])
        ]

    def writing_to(self, stream: str) -> str:
        """A sink with a decided batch that is still being carried into the stream, or empty."""
        open_ = (sink for sink in self._sinks if sink.open is not None)
        return next((sink.id for sink in open_ if sink.stream == stream), "")

    def tick(self, now: float) -> None:
        """Drop spools that were aborted, or that nobody has used for long."""
        busy = {spool_of(*sink[:2]) for sink in self._sinks if sink.open is not None}
        for name in self._streams.by_name.keys() - busy - self._dropping:
            if name.startswith(SPOOL) and self._is_due(name, now):
                self._dropping.add(name)
                self._nursery.start_soon(self._drop_unused, name, now)

    # -- deciding and carrying -----------------------------------------------------------------

    async def _decided(self, sink: Sink, batch: int, attempts: Sequence[Attempt]) -> Sink:
        """The sink's row with the decision; raises SinkError if the batch cannot be published."""
        target = self._streams.find(sink.stream)
        spool = self._streams.by_name.get(spool_of(*sink[:2]))
        names = {attempt.producer for attempt in attempts}
        numbers = sorted({each for attempt in attempts for each in attempt.counts})
        staged: dict[int, dict[str, int]] = {}
        size = 0
        for number in numbers if spool is not None else ():
            assert spool is not None
            if not 0 <= number < len(spool.partitions) == len(target.partitions):
                raise SinkError(f"{sink.stream} has no partition {number}; write the batch again")
            rows: list[StagedRow] = await spool.partitions[number].rows()
            staged[number] = tally(rows)
            size += sum(row.size for row in rows if row.producer in names)
            try:
                problem = target.declare(tuple(spool.partitions[number].types.values()))
            except LimitReached as reached:
                problem = str(reached)
            if problem:
                raise SinkError(problem)
        self._check_room(sink, batch, size)
        first = {}
        for number in staged:
            partition = target.partitions[number]
            known = partition.producers.get(PRODUCER + sink.id)
            first[number] = 0 if known is None else known.number
            _ = partition.bounds  # a damaged partition raises
        return decide(sink, batch, attempts, staged, first, int(clocks.wall() * 1000))

    def _check_room(self, sink: Sink, batch: int, size: int) -> None:
        """Raise SinkError unless a batch of this many bytes fits into the quota for certain."""
        quota = self._streams.store.settings.quota_bytes
        streams = self._streams.store.streams.values()
        used = sum(each.standing.disk for stream in streams for each in stream.partitions)
        needed = 2 * size + 4 * PIECE_BYTES + RESERVE_BYTES if size else 0
        if quota and used + needed > quota:
            raise SinkError(
                f"batch {batch} of sink {sink.id!r} needs up to {needed} bytes in "
                f"{sink.stream!r}, and {used} of s4.log.quotaBytes ({quota}) are used; raise the "
                f"quota, trim streams, or write smaller batches. Nothing of it is visible"
            )

    async def _carry(self, sink: Sink, *, last: bool) -> Sink:
        """Carry a decided batch into its stream, record that, and delete what was staged."""
        decision = sink.open
        assert decision is not None
        target = self._streams.find(sink.stream)
        spool = self._streams.by_name.get(spool_of(*sink[:2]))
        decided: dict[int, int] = {}
        if spool is not None:
            for source in spool.partitions:
                decided[source.number] = source.standing.upcoming
                with suppress(LimitReached):  # it was decided when there was room
                    target.declare(tuple(source.types.values()))
        for number in decision.first:
            carrying = Carrying(sink, number)
            if spool is not None:
                await _carry_partition(carrying, spool, target, number, PRODUCER + sink.id)
            carrying.check()
        passing("sink.carried")
        done = sink._replace(open=None)
        await self._put(done)
        passing("sink.done")
        if last:
            await self._end(done)
        elif spool is not None:
            self._nursery.start_soon(_trim, spool, decided)
        return done

    # -- rows and spools -----------------------------------------------------------------------

    async def _put(self, sink: Sink) -> None:
        await threads.run_sync(self._file.put, sink)
        self._by_id.setdefault(sink.id, {})[sink.stream] = sink

    async def _remove(self, sink: Sink) -> None:
        await threads.run_sync(self._file.remove, sink)
        self._named.pop(sink[:2], None)
        del self._by_id[sink.id][sink.stream]
        if not self._by_id[sink.id]:
            del self._by_id[sink.id]

    def _note_over(self, id_: str, stream: str) -> None:
        self._over[id_, stream] = None
        if len(self._over) > _MAX_OVER:
            del self._over[next(iter(self._over))]

    async def _end(self, sink: Sink) -> None:
        """Drop the spool of a sink, and have its target forget the sink's numbers."""
        await self._drop(spool_of(*sink[:2]))
        target = self._streams.by_name.get(sink.stream)
        if target is not None:
            target.rows.forget_known(PRODUCER + sink.id, lambda _: None)

    async def _drop(self, spool: str) -> None:
        self._aborted.discard(spool)
        self._last_use.pop(spool, None)
        if spool in self._streams.by_name:
            await self._streams.drop_stream(spool)

    def _is_due(self, spool: str, now: float) -> bool:
        """Return True if a spool was aborted, or is too old, and nobody appends to it."""
        if self._is_used(spool):
            self._last_use[spool] = now
            return False
        return spool in self._aborted or now - self._last_use.setdefault(spool, now) > self._expiry

    async def _drop_unused(self, spool: str, now: float) -> None:
        id_, stream = next((s[:2] for s in self._sinks if spool_of(*s[:2]) == spool), ("", ""))
        try:
            async with self._turn(id_, stream):
                if not self._is_due(spool, now):  # an attempt was staged meanwhile
                    return
                size = self._staged_bytes(spool)
                await self._drop(spool)
                sink = self._find(id_, stream)
                if sink is not None and sink.batch < 0:
                    await self._remove(sink)
        except S4Error as error:
            log.error("a spool cannot be dropped", sink=id_, reason=str(error))
            return
        finally:
            self._dropping.discard(spool)
        log.info("what a sink has staged and not published is dropped", sink=id_, bytes=size)

    def _is_used(self, spool: str) -> bool:
        hosted = self._streams.by_name.get(spool)
        return hosted is not None and any(
            lane.connection is not None for lane in hosted.admission.lanes.values()
        )

    def _staged_bytes(self, spool: str) -> int:
        hosted = self._streams.by_name.get(spool)
        return sum(each.standing.size for each in hosted.partitions) if hosted is not None else 0


def spool_of(id_: str, stream: str) -> str:
    both = f"{stream}/{id_}".encode(errors="surrogatepass")  # no name of a stream has a slash
    return f"{SPOOL}{sha256(both).hexdigest()[:24]}"


async def _carry_partition(
    carrying: Carrying, spool: HostedStream, target: HostedStream, number: int, producer: str
) -> None:
    """Append the winners' frames to one partition of the target, piece by piece."""
    source, partition = spool.partitions[number], target.partitions[number]
    room = trio.CapacityLimiter(2)
    failures: list[S4Error] = []
    at = source.bounds.oldest

    def done(piece: object, answer: Appended | S4Error) -> None:
        if not isinstance(answer, Appended):
            failures.append(answer)
        pieces[piece] -= 1
        if not pieces[piece]:
            del pieces[piece]
            room.release_on_behalf_of(piece)
            target.grown()
            passing("sink.piece")

    pieces: dict[object, int] = {}
    while not carrying.complete and at < source.bounds.upcoming and not failures:
        frames = await source.read(at, PIECE_BYTES)
        at = frames[-1].end
        numbered = list(carrying.carry(frames))
        if not numbered:
            continue
        piece = object()
        await room.acquire_on_behalf_of(piece)
        pieces[piece] = len(numbered)
        for frame, first in numbered:
            staged = target.incoming(frame, frame.body, own_id=True)
            mine = replace(staged, producer=producer, first=first)
            partition.append(mine, partial(done, piece))
    for _ in range(2):
        await room.acquire_on_behalf_of(object())
    if failures:
        raise failures[0]


async def _trim(spool: HostedStream, below: Mapping[int, int]) -> None:
    """Delete the decided part of a spool."""
    for partition in spool.partitions:
        with suppress(S4Error):  # the next batch, or the end of the spool, deletes it
            await partition.trim(below[partition.number])
