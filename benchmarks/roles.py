"""The roles of the benchmarks' processes. Run as ``python -m benchmarks.roles NAME``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import msgspec
import trio

from benchmarks import (
    bytewax_windows,
    counting,
    durable_latency,
    flows,
    json_lines,
    log_append,
    log_replay,
    many_windows,
    overload,
    state,
    timed,
    window_latency,
    windows,
    word_count,
    workload,
)
from benchmarks.process import resident_mb, usage
from s4node.app.app import App
from s4node.config.config import Config
from s4node.net.certificates.credentials import Credentials
from s4node.net.client.client import Client
from s4node.net.client.sync_client import SyncClient
from s4node.process import log_setup
from s4node.process.serve import tune_python
from s4node.runtime.container.container import Container

CHUNK = 2048


def say(**message: Any) -> None:
    """Answer the benchmark."""
    print(json.dumps(message), flush=True)


def listen() -> dict[str, Any]:
    """The benchmark's next message."""
    return json.loads(sys.stdin.readline() or "{}")  # type: ignore[no-any-return]


def tally_app(finder: str = "") -> App:
    """The keyed count: one PE class, keyed by an attribute or by ``finder``."""
    app = App("keyed-count")
    key = workload.ByKey(finder) if finder else "key"
    app.create_input_stream("readings", app.create_pe(workload.Tally), key=key)
    return app


def node(task: dict[str, Any]) -> None:
    """Run a node with the keyed count.

    It reports its address; on ``{"stop": false}`` its memory and CPU so far; on ``{}`` its counts.
    """

    async def main() -> None:
        app = tally_app(task.get("finder", ""))
        own = {"s4.listener.address": "tcp://127.0.0.1:0"}
        container = Container(app, Config.from_values({**own, **task["settings"]}))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(container.run)
            await container.ready.wait()
            tune_python(container.config)
            say(address=container.address)
            while not await trio.to_thread.run_sync(lambda: listen().get("stop", True)):
                say(rss_mb=resident_mb(), cpu_s=usage()["cpu_s"])
            tallies = [
                (str(pe.key), pe.count, pe.total)  # type: ignore[attr-defined]
                for one in container.tasks.values()
                for pe in one.instances["Tally"].values()
            ]
            say(
                events=sum(count for _, count, _ in tallies),
                keys=len(tallies),
                digest=workload.digest(tallies),
                **usage(),
            )
            container.stop()

    trio.run(main)


def producer(task: dict[str, Any]) -> None:
    """Send for some seconds, many events in each call; report how many, and the time."""

    async def main() -> None:
        keys = workload.key_sequence()
        finder = task.get("finder", "")
        credentials = Credentials.in_options(task)
        async with Client(task["address"], credentials=credentials) as client:
            key = workload.ByKey(finder) if finder else None
            stream = await client.stream("readings", key=key)
            source = workload.batches(keys, CHUNK)
            sent = 0
            before = usage()["cpu_s"]
            began = time.perf_counter()
            until = began + task["seconds"]
            while time.perf_counter() < until:
                await stream.send_many(next(source))
                sent += CHUNK
            refused = await stream.flush()
            seconds = time.perf_counter() - began
            say(sent=sent, seconds=seconds, refused=len(refused), cpu_s=usage()["cpu_s"] - before)

    trio.run(main)


def live_keys(task: dict[str, Any]) -> None:
    """Send every key once, then keys by ``law``; wait for a message before each part."""

    async def main() -> None:
        keys = list(workload.uniform_keys(task["keys"]))
        async with Client(task["address"]) as client:
            stream = await client.stream("readings")
            say(ready=True)
            listen()
            sent = 0
            for events in workload.once(keys, CHUNK):
                await stream.send_many(events)
                sent += len(events)
            await stream.flush()
            say(sent=sent)
            listen()
            source = workload.batches(workload.drawn(keys, task["law"]), CHUNK)
            began, sent = time.perf_counter(), 0
            while time.perf_counter() - began < task["seconds"]:
                await stream.send_many(next(source))
                sent += CHUNK
            await stream.flush()
            say(sent=sent, seconds=time.perf_counter() - began)

    trio.run(main)


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
    say(rss_mb=resident_mb() - before, keys=len(found))


def plain_loop(task: dict[str, Any]) -> None:
    """Report the CPU time of the bare loop over the same keys by the same law."""
    keys = list(workload.uniform_keys(task["keys"]))
    encode = msgspec.msgpack.Encoder().encode
    decoder = msgspec.msgpack.Decoder(list[workload.Reading])
    app = tally_app()
    app.freeze()
    create = app.prototypes["Tally"][0].make
    instances: dict[str, Any] = {}
    _bare_loop([encode(e) for e in workload.once(keys, CHUNK)], decoder.decode, instances, create)
    sequence = workload.drawn(keys, task["law"])
    source = workload.batches(sequence, CHUNK)
    bodies = [encode(next(source)) for _ in range(len(sequence) // CHUNK)]
    del keys
    tune_python(Config.from_values({}))
    before, passes = usage()["cpu_s"], 0
    while usage()["cpu_s"] - before < task["seconds"]:
        _bare_loop(bodies, decoder.decode, instances, create)
        passes += 1
    say(cpu_s=usage()["cpu_s"] - before, events=passes * len(sequence))


def single(task: dict[str, Any]) -> None:
    """Send for some seconds, one event in each call, with the trio or the synchronous client."""
    keys = workload.key_sequence()
    chunks = workload.batches(keys, CHUNK)

    async def main() -> None:
        async with Client(task["address"]) as client:
            stream = await client.stream("readings")
            sent, began = 0, time.perf_counter()
            before = usage()["cpu_s"]
            while time.perf_counter() - began < task["seconds"]:
                for event in next(chunks):
                    await stream.send(event)
                sent += CHUNK
            await stream.flush()
            say(sent=sent, seconds=time.perf_counter() - began, cpu_s=usage()["cpu_s"] - before)

    def plain() -> None:
        with SyncClient(task["address"]) as client:
            stream = client.stream("readings")
            sent, began = 0, time.perf_counter()
            before = usage()["cpu_s"]
            while time.perf_counter() - began < task["seconds"]:
                for event in next(chunks):
                    stream.send(event)
                sent += CHUNK
            stream.flush()
            say(sent=sent, seconds=time.perf_counter() - began, cpu_s=usage()["cpu_s"] - before)

    trio.run(main) if task["client"] == "trio" else plain()


def limit(task: dict[str, Any]) -> None:
    """The bare loop over the same frames, classes and garbage collector settings."""
    tune_python(Config.from_values({}))
    keys = workload.key_sequence()
    encode = msgspec.msgpack.Encoder().encode
    source = workload.batches(keys, CHUNK)
    bodies = [encode(next(source)) for _ in range(len(keys) // CHUNK)]
    app = tally_app()
    prototype, _ = app.prototypes["Tally"]
    app.freeze()
    create = prototype.make
    decoder = msgspec.msgpack.Decoder(list[workload.Reading])
    instances: dict[str, Any] = {}
    seconds, passes = 0.0, 0
    before = usage()["cpu_s"]
    while seconds < task["seconds"]:
        began = time.perf_counter()
        _bare_loop(bodies, decoder.decode, instances, create)
        seconds += time.perf_counter() - began
        passes += 1
    tallies = [(key, pe.count, pe.total) for key, pe in instances.items()]
    say(
        events=passes * len(keys),
        seconds=seconds,
        cpu_s=usage()["cpu_s"] - before,
        digest=workload.digest(tallies),
    )


def _bare_loop(
    bodies: list[bytes],
    decode: Callable[[bytes], list[Any]],
    instances: dict[str, Any],
    create: Callable[[str, None], Any],
) -> None:
    for body in bodies:
        for e in decode(body):
            k = e.key
            pe = instances.get(k)
            if pe is None:
                pe = instances[k] = create(k, None)
            pe.on_event(e)


def lines_limit(task: dict[str, Any]) -> None:
    """The bare loop over the same lines of JSON, with events of the same fields."""
    fields = [(one.name, one.type) for one in msgspec.structs.fields(workload.Reading)]
    line = msgspec.defstruct("Line", fields, frozen=True, gc=False)  # an object, not an array
    decode = msgspec.json.Decoder(line).decode_lines
    texts = json_lines.texts()
    app = tally_app()
    app.freeze()
    create = app.prototypes["Tally"][0].make
    instances: dict[str, Any] = {}
    tune_python(Config.from_values({}))
    passes, began = 0, time.perf_counter()
    while time.perf_counter() - began < task["seconds"]:
        _bare_loop(texts, decode, instances, create)
        passes += 1
    seconds = time.perf_counter() - began
    say(events=passes * len(texts) * json_lines.CHUNK, seconds=seconds)


def sentences(task: dict[str, Any]) -> None:
    """Send sentences for some seconds; report how many, and the time."""

    async def main() -> None:
        events = word_count.sentences()
        size = word_count.CHUNK
        async with Client(task["address"]) as client:
            stream = await client.stream("sentences")
            source = cycle([events[at : at + size] for at in range(0, len(events), size)])
            sent, before, began = 0, usage()["cpu_s"], time.perf_counter()
            while time.perf_counter() - began < task["seconds"]:
                await stream.send_many(next(source))
                sent += size
            refused = await stream.flush()
            say(
                sent=sent,
                seconds=time.perf_counter() - began,
                cpu_s=usage()["cpu_s"] - before,
                refused=sum(one.count for one in refused),
                reason=refused[0].reason if refused else "",
            )

    trio.run(main)


def words_limit(task: dict[str, Any]) -> None:
    """The bare loop of word-count: decode, split, count, in one process."""
    bodies = word_count.bodies()
    decoder = msgspec.msgpack.Decoder(list[flows.Sentence])
    app = flows.word_count()
    app.freeze()
    create: Any = app.prototypes["Count"][0].make
    instances: dict[str, Any] = {}
    tune_python(Config.from_values({}))
    words, began = 0, time.perf_counter()
    while time.perf_counter() - began < task["seconds"]:
        for body in bodies:
            for sentence in decoder.decode(body):
                for text in sentence.text.split():
                    word = flows.Word(text)
                    k = word.word
                    pe = instances.get(k)
                    if pe is None:
                        pe = instances[k] = create(k, None)
                    pe.on_event(word)
        words += len(bodies) * word_count.CHUNK * flows.WORDS_IN_A_SENTENCE
    say(words=words, seconds=time.perf_counter() - began)


def batons(task: dict[str, Any]) -> None:
    """Send batons; report the time."""

    async def main() -> None:
        async with Client(task["address"]) as client:
            stream = await client.stream("batons")
            chunk = flows.batons(CHUNK)
            before, began, left = usage()["cpu_s"], time.perf_counter(), task["events"]
            while left:
                part = chunk[:left]
                await stream.send_many(part)
                left -= len(part)
            await stream.flush()
            say(seconds=time.perf_counter() - began, cpu_s=usage()["cpu_s"] - before)

    trio.run(main)


ROLES: dict[str, Callable[[dict[str, Any]], None]] = {
    "node": node,
    "producer": producer,
    "single": single,
    "live_keys": live_keys,
    "plain": plain,
    "plain_loop": plain_loop,
    "limit": limit,
    "member": flows.member,
    "sentences": sentences,
    "lines_limit": lines_limit,
    "words_limit": words_limit,
    "batons": batons,
    "timed": timed.timed,
    "bare_timed": timed.bare_timed,
    "delay": timed.delay,
    "bare": timed.bare,
    "slow_node": lambda task: overload.slow_node(task, say, listen),
    "pressing": lambda task: overload.pressing(task, say, listen),
    "log_node": lambda task: log_append.log_node(task, say, listen),
    "appending": lambda task: log_append.appending(task, say, listen),
    "bare_inserts": lambda task: log_append.bare_inserts(task, say),
    "replayed": lambda task: log_replay.replayed(task, say, listen),
    "filling": lambda task: counting.filling(task, say),
    "counting": lambda task: counting.counting(task, say, listen),
    "stored": lambda task: state.stored(task, say),
    "many_keys": lambda task: state.many_keys(task, say),
    "sparking": lambda task: durable_latency.sparking(task, say),
    "hopping": lambda task: durable_latency.hopping(task, say),
    "replaying": lambda task: log_replay.replaying(task, say),
    "windowed": lambda task: windows.windowed(task, say, listen),
    "opened": lambda task: many_windows.opened(task, say, listen),
    "sending_timed": lambda task: windows.sending_timed(task, say),
    "bytewax_windows": lambda task: bytewax_windows.bytewax_windows(task, say),
    "ending": lambda task: window_latency.ending(task, say, listen),
    "sending_live": lambda task: window_latency.sending_live(task, say),
}


if __name__ == "__main__":
    log_setup.configure("warning", "auto")
    ROLES[sys.argv[1]](listen())
