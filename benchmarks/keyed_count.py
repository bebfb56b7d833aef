"""From a producer process over TCP through every stage to ``on_event``: three benchmarks.

keyed-count: the limit is the bare loop (decode, look up, call) over the same frames in its own
process, run in turn with the system. Besides a key that is an attribute, there are rows for the
KeyFinders of an adapter and an app: with the same name, with two names, and one against an
attribute.

single-events: a producer calls ``send(event)`` for one event at a time, as fast as it can.

keys: the cost of an event and of a key, with more and more live keys. Every key gets an event
first, so all instances exist; then events come for keys drawn by Zipf's law, as in keyed-count, and
evenly, so that caches do not help. The time of an event is the node's CPU time;
``limit_events_per_s`` is the bare loop over the same keys. Memory is compared with plain objects of
the same attributes in a dict, made from the same decoded events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import Any

import msgspec
import trio

from benchmarks import workload
from benchmarks.runner import (
    Result,
    Role,
    Run,
    answer,
    asked,
    container_of,
    in_turn,
    listen,
    measured,
    rate_of,
    resident_mb,
    running,
    send_for,
    usage,
)
from s4node.app.app import App
from s4node.net.certificates.credentials import Credentials
from s4node.net.client.client import Client
from s4node.net.client.sync_client import SyncClient
from s4node.process.stopping import tune_python

CHUNK = 2048

CASES = {
    "attribute, 1 partition": (1, "", ""),
    "attribute": (64, "", ""),
    "the same KeyFinder": (64, "own", "own"),
    "a KeyFinder for an attribute": (64, "", "own"),
    "a KeyFinder of another name": (64, "own", "other"),
}
"""Partitions, and the KeyFinders of input and producer; empty means the attribute."""

LIVE_KEYS = (1_000, 10_000, 100_000, 1_000_000)
LAWS = ("zipf", "uniform")
_MEASURABLE_KEYS = 100_000
"""The memory of fewer keys is too small to measure."""


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for 1 partition, one for 64, and one for each of the KeyFinders."""
    runs, seconds = (1, 0.5) if quick else (5, 5.5)
    cases: dict[str, Callable[[], Run]] = {
        case: partial(system, partitions, seconds, node_finder=ours, finder=theirs)
        for case, (partitions, ours, theirs) in CASES.items()
    }
    cases["limit"] = partial(measured, "keyed_count.limit", seconds=seconds)
    found = in_turn(cases, runs, say)
    limit = rate_of(found["limit"])
    results = [
        Result.of("keyed-count", found[case], limit, partitions=partitions, key=case)
        for case, (partitions, _, _) in CASES.items()
    ]
    one, attribute, *finders = (result.events_per_s or 0.0 for result in results)
    results[1].notes["ratio_to_1_partition"] = attribute / one
    for result, rate in zip(results[2:], finders, strict=True):
        result.notes["ratio_to_attribute"] = rate / attribute
    return results


def run_single(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for the trio client and one for the synchronous client."""
    runs, seconds = (1, 0.5) if quick else (5, 5.5)
    cases = {
        client: partial(system, 1, seconds, role="keyed_count.single", client=client)
        for client in ("trio", "sync")
    }
    found = in_turn(cases, runs, say)
    return [Result.of("single-events", found[client], client=client) for client in cases]


def run_keys(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each law and number of keys; ``ratio`` is relative to 1,000 keys."""
    runs, seconds = (1, 0.3) if quick else (3, 5.5)
    results: list[Result] = []
    for law in LAWS:
        first: float | None = None
        for keys in LIVE_KEYS[:2] if quick else LIVE_KEYS:
            say(f"{keys:,} keys, drawn {law}")
            found = [_keys(law, keys, seconds) for _ in range(runs)]
            result = Result.of("keys", found, law=law, keys=keys)
            result.limit_events_per_s = median(one["limit"] for one in found)
            cpu = result.cpu_s_per_million
            assert cpu is not None
            first = first or cpu
            result.ratio = cpu / first
            if keys >= _MEASURABLE_KEYS:
                bytes_a_key = median(one["bytes_a_key"] for one in found)
                plain = median(one["plain_bytes_a_key"] for one in found)
                result.notes |= {"bytes_a_key": bytes_a_key, "memory_ratio": bytes_a_key / plain}
            results.append(result)
    return results


def system(
    partitions: int,
    seconds: float,
    role: str = "keyed_count.producer",
    settings: dict[str, str] | None = None,
    node_finder: str = "",
    **task: Any,
) -> Run:
    """One run of a node and a producer: the events sent, the speed, and a check of the counts."""
    wanted = {"s4.cluster.partitions": str(partitions), **(settings or {})}
    with Role("keyed_count.node", settings=wanted, finder=node_finder) as node:
        address = node.hear()["address"]
        sent = measured(role, address=address, seconds=seconds, **task)
        node.tell({})
        counted = node.hear()
    return {
        **sent,
        "cpu_s": sent["cpu_s"] + counted["cpu_s"],
        "rss_mb": counted["rss_mb"],
        "checked": counted["events"] == sent["events"]
        and counted["digest"] == workload.digest_of(sent["events"]),
    }


def _keys(law: str, keys: int, seconds: float) -> Run:
    plain_mb = measured("keyed_count.plain", keys=keys)["rss_mb"]
    limit = measured("keyed_count.plain_loop", keys=keys, law=law, seconds=seconds / 2)
    with Role("keyed_count.node", settings={}) as node:
        address = node.hear()["address"]
        task = {"address": address, "keys": keys, "law": law, "seconds": seconds}
        with Role("keyed_count.live_keys", **task) as producer:
            producer.hear()
            empty = node.ask()
            producer.tell({})
            once = producer.hear()["sent"]
            full = node.ask()
            producer.tell({})
            sent = producer.hear()
            after = node.ask()
        node.tell({})
        counted = node.hear()
    return {
        **sent,
        "limit": limit["events"] / limit["cpu_s"],
        "cpu_s": after["cpu_s"] - full["cpu_s"],
        "rss_mb": counted["rss_mb"],
        "bytes_a_key": (full["rss_mb"] - empty["rss_mb"]) * 1e6 / keys,
        "plain_bytes_a_key": plain_mb * 1e6 / keys,
        "checked": counted["events"] == once + sent["events"] and counted["keys"] == keys,
    }


# -- the roles -------------------------------------------------------------------------------------


def tally_app(finder: str = "") -> App:
    """The keyed count: one PE class, keyed by an attribute or by ``finder``."""
    app = App("keyed-count")
    key = workload.ByKey(finder) if finder else "key"
    app.create_input_stream("readings", app.create_pe(workload.Tally), key=key)
    return app


def node(task: dict[str, Any]) -> None:
    """Run a node with the keyed count.

    It reports its address; when it is asked its memory and CPU so far; at the end its counts.
    """

    async def main() -> None:
        app = tally_app(task.get("finder", ""))
        async with running(container_of(app, task["settings"])) as container:
            answer(address=container.address)
            while await asked():
                answer(rss_mb=resident_mb(), cpu_s=usage()["cpu_s"])
            tallies = workload.tallies(container)
            answer(
                events=sum(count for _, count, _ in tallies),
                keys=len(tallies),
                digest=workload.digest(tallies),
                **usage(),
            )

    trio.run(main)


def producer(task: dict[str, Any]) -> None:
    """Send for some seconds, many events in each call; report how many, and the time."""

    async def main() -> None:
        finder = task.get("finder", "")
        credentials = Credentials.in_options(task)
        async with Client(task["address"], credentials=credentials) as client:
            key = workload.ByKey(finder) if finder else None
            stream = await client.stream("readings", key=key)
            source = workload.batches(workload.key_sequence(), CHUNK)
            answer(**await send_for(task["seconds"], stream, source))

    trio.run(main)


def single(task: dict[str, Any]) -> None:
    """Send for some seconds, one event in each call, with the trio or the synchronous client."""
    chunks = workload.batches(workload.key_sequence(), CHUNK)

    async def main() -> None:
        async with Client(task["address"]) as client:
            stream = await client.stream("readings")
            sent, before, began = 0, usage()["cpu_s"], time.perf_counter()
            while time.perf_counter() - began < task["seconds"]:
                for event in next(chunks):
                    await stream.send(event)
                sent += CHUNK
            await stream.flush()
            seconds = time.perf_counter() - began
            answer(events=sent, seconds=seconds, cpu_s=usage()["cpu_s"] - before)

    def plain() -> None:
        with SyncClient(task["address"]) as client:
            stream = client.stream("readings")
            sent, before, began = 0, usage()["cpu_s"], time.perf_counter()
            while time.perf_counter() - began < task["seconds"]:
                for event in next(chunks):
                    stream.send(event)
                sent += CHUNK
            stream.flush()
            seconds = time.perf_counter() - began
            answer(events=sent, seconds=seconds, cpu_s=usage()["cpu_s"] - before)

    trio.run(main) if task["client"] == "trio" else plain()


def live_keys(task: dict[str, Any]) -> None:
    """Send every key once, then keys by ``law``; wait for a message before each part."""

    async def main() -> None:
        keys = list(workload.uniform_keys(task["keys"]))
        async with Client(task["address"]) as client:
            stream = await client.stream("readings")
            answer(ready=True)
            listen()
            sent = 0
            for events in workload.once(keys, CHUNK):
                await stream.send_many(events)
                sent += len(events)
            await stream.flush()
            answer(sent=sent)
            listen()
            source = workload.batches(workload.drawn(keys, task["law"]), CHUNK)
            answer(**await send_for(task["seconds"], stream, source))

    trio.run(main)


def limit(task: dict[str, Any]) -> None:
    """The bare loop over the same frames, classes and garbage collector settings."""
    keys = workload.key_sequence()
    encode = msgspec.msgpack.Encoder().encode
    source = workload.batches(keys, CHUNK)
    bodies = [encode(next(source)) for _ in range(len(keys) // CHUNK)]
    loop = BareLoop(msgspec.msgpack.Decoder(list[workload.Reading]).decode)
    seconds, passes, before = 0.0, 0, usage()["cpu_s"]
    while seconds < task["seconds"]:
        began = time.perf_counter()
        loop.count(bodies)
        seconds += time.perf_counter() - began
        passes += 1
    answer(events=passes * len(keys), seconds=seconds, cpu_s=usage()["cpu_s"] - before)


def plain(task: dict[str, Any]) -> None:
    """Report the memory of plain objects with a Tally's attributes, in a dict."""

    class Plain:
        def __init__(self) -> None:
            self.count = 0
            self.total = 0

    encode = msgspec.msgpack.Encoder().encode
    decoder = msgspec.msgpack.Decoder(list[workload.Reading])
    found: dict[str, Plain] = {}
    before = resident_mb()
    for events in workload.once(workload.uniform_keys(task["keys"]), CHUNK):
        for event in decoder.decode(encode(events)):
            one = found[event.key] = Plain()
            one.count += 1
            one.total += event.value
    answer(rss_mb=resident_mb() - before, keys=len(found))


def plain_loop(task: dict[str, Any]) -> None:
    """Report the CPU time of the bare loop over the same keys by the same law."""
    keys = list(workload.uniform_keys(task["keys"]))
    encode = msgspec.msgpack.Encoder().encode
    loop = BareLoop(msgspec.msgpack.Decoder(list[workload.Reading]).decode)
    loop.count([encode(events) for events in workload.once(keys, CHUNK)])
    sequence = workload.drawn(keys, task["law"])
    source = workload.batches(sequence, CHUNK)
    bodies = [encode(next(source)) for _ in range(len(sequence) // CHUNK)]
    del keys
    before, passes = usage()["cpu_s"], 0
    while usage()["cpu_s"] - before < task["seconds"]:
        loop.count(bodies)
        passes += 1
    answer(cpu_s=usage()["cpu_s"] - before, events=passes * len(sequence))


class BareLoop:
    """Decodes, looks up and calls, with the instances that a node would have."""

    def __init__(self, decode: Callable[[bytes], list[Any]]) -> None:
        app = tally_app()
        app.freeze()
        self._create: Callable[[str, None], Any] = app.prototypes["Tally"][0].make
        self._decode = decode
        self._instances: dict[str, Any] = {}
        tune_python()

    def count(self, bodies: Iterable[bytes]) -> None:
        decode, instances, create = self._decode, self._instances, self._create
        for body in bodies:
            for e in decode(body):
                k = e.key
                pe = instances.get(k)
                if pe is None:
                    pe = instances[k] = create(k, None)
                pe.on_event(e)
