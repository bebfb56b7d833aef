"""Apps with internal streams, in one container or as members of a cluster: two benchmarks.

word-count: sentences to words on a keyed stream across two nodes to counts. The limit is the same
work in one bare loop in one process: decode, split, count in a dict of the same objects. Events are
words.

hops: the cost of one more stream hop: in a partition, between tasks, between nodes. Each figure is
the difference between a chain of streams and no chain, per hop: total time, and CPU time of all
processes. There is no limit to compare with; ``ratio`` is relative to the hop within a partition.
Two rows, within a partition, too, have an event with a list. Each PE makes one, or has got it: then
a copy is put.

A member reports its address when it owns its partitions; when it is asked it reports its counts so
far.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle, islice
from pathlib import Path
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
    measured,
    middle,
    rate_of,
    running,
    send_for,
    usage,
)
from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import Stream
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.cluster.tree.folder import FolderCoordination
from s4node.events.event import Event
from s4node.events.keys import Partitioner
from s4node.net.client.client import Client
from s4node.process.stopping import tune_python
from s4node.runtime.container.container import Container

CLUSTER = "bench"
LOSSLESS = {"s4.cluster.partitions": "2", "s4.sender.executor": "block"}
WORDS_IN_A_SENTENCE = 10
SENTENCES = 256
"""The sentences of a batch."""

HOPS = 4
WAYS: dict[str, dict[str, Any]] = {
    "within a partition": {"alternate": False, "nodes": 0, "partitions": 1},
    "between tasks of a process": {"alternate": True, "nodes": 0, "partitions": 2},
    "between nodes": {"alternate": True, "nodes": 2, "partitions": 2},
    "with a list that is made": {"alternate": False, "nodes": 0, "partitions": 1, "lists": "made"},
    "with a list, passed on": {"alternate": False, "nodes": 0, "partitions": 1, "lists": "passed"},
}
_BATONS = 2048
_PATIENCE = 60.0


def run_words(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    runs, seconds = (1, 0.5) if quick else (5, 5.5)
    sides = {
        "one bare loop": partial(measured, "flows.words_limit", seconds=seconds),
        "two nodes": partial(words_of_nodes, seconds, say),
    }
    limit, found = in_turn(sides, runs, say).values()
    return [Result.of("word-count", found, rate_of(limit), nodes=2)]


def run_hops(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """A row for each kind of hop."""
    runs, events = (1, 20_000) if quick else (5, 1_500_000)
    cases = {
        (way, f"{hops} hops"): partial(chain, way, hops, events)
        for way in WAYS
        for hops in (0, HOPS)
    }
    found = in_turn(cases, runs, say)
    results = []
    for way in WAYS:
        none, chained = found[way, "0 hops"], found[way, f"{HOPS} hops"]
        pairs = list(zip(none, chained, strict=True))
        result = Result.of("hops", chained)
        result.events_per_s = (HOPS + 1) * rate_of(chained)
        result.cpu_s_per_million = middle(
            [(b["cpu_s"] - a["cpu_s"]) / events / HOPS * 1e6 for a, b in pairs]
        )
        result.checked = all(one["checked"] for one in (*none, *chained))
        cost = middle([(b["seconds"] - a["seconds"]) / events / HOPS for a, b in pairs])
        result.notes = {"way": way, "us_a_hop": cost * 1e6}
        results.append(result)
    first = results[0].notes["us_a_hop"]
    for result in results:
        result.ratio = result.notes["us_a_hop"] / first if first > 0 else None
    return results


def words_of_nodes(seconds: float, say: Callable[[str], None]) -> Run:
    """One run of two nodes and a producer; says what is wrong with the counts."""
    with tempfile.TemporaryDirectory(prefix="s4-bench-") as folder, ExitStack() as stack:
        members = _members(stack, 2, LOSSLESS, app="words", folder=folder, whole=True)
        addresses = [member.hear()["address"] for member in members]
        before = [member.ask() for member in members]
        sent = measured("flows.sentences", address=addresses[0], seconds=seconds)
        want = sent["events"] * WORDS_IN_A_SENTENCE
        began = time.perf_counter()
        _wait_counted(members, want)
        seconds = sent["seconds"] + time.perf_counter() - began
        after = [member.ask() for member in members]
        counts: Counter[str] = Counter()
        for now in after:
            counts.update(now["counts"])
        right = counts == (expected := truth(sent["events"]))
        if not right or sent["refused"]:
            wrong = {word: counts[word] - expected[word] for word in counts | expected}
            say(
                f"of {want} words, {counts.total()} were counted: "
                f"{sum(n for n in wrong.values() if n > 0)} too many, "
                f"{-sum(n for n in wrong.values() if n < 0)} missing; "
                f"{sent['refused']} sentences were refused, first {sent['reason']!r}; "
                f"at the members: {[now['unfinished'] for now in after]}"
            )
        cpu_s = sum(b["cpu_s"] - a["cpu_s"] for a, b in zip(before, after, strict=True))
        for member in members:
            member.tell({})
    return {
        "events": want,
        "seconds": seconds,
        "cpu_s": cpu_s + sent["cpu_s"],
        "rss_mb": max(now["rss_mb"] for now in after),
        "checked": right,
    }


def chain(way: str, hops: int, events: int) -> Run:
    """One run: ``events`` events through a chain of ``hops`` hops."""
    kind = WAYS[way]
    values = {**LOSSLESS, "s4.cluster.partitions": str(kind["partitions"])}
    task: dict[str, Any] = {"app": "hops", "hops": hops, "alternate": kind["alternate"]}
    task["lists"] = kind.get("lists", "")
    with tempfile.TemporaryDirectory(prefix="s4-bench-") as folder, ExitStack() as stack:
        if kind["nodes"]:
            task["folder"] = folder
        members = _members(stack, kind["nodes"] or 1, values, **task)
        addresses = [member.hear()["address"] for member in members]
        before = sum(member.ask()["cpu_s"] for member in members)
        with Role("flows.batons", address=addresses[0], events=events) as producer:
            sent = producer.hear()
            began = time.perf_counter()
            total = _wait_counted(members, events)
            rest = time.perf_counter() - began
        after = [member.ask() for member in members]
        for member in members:
            member.tell({})
    return {
        "events": events,
        "seconds": sent["seconds"] + rest,
        "cpu_s": sum(one["cpu_s"] for one in after) - before + sent["cpu_s"],
        "rss_mb": max(one["rss_mb"] for one in after),
        "checked": total == events,
    }


def _members(stack: ExitStack, count: int, values: dict[str, str], **task: Any) -> list[Role]:
    task |= {"settings": values, "expected": count}
    return [stack.enter_context(Role("flows.member", member=f"n{n}", **task)) for n in range(count)]


def _wait_counted(members: Sequence[Role], events: int) -> int:
    """Wait until members have counted so many events, or no more come; return the count."""
    counted, progress = 0, time.perf_counter()
    total: int
    while (total := sum(member.ask()["total"] for member in members)) < events:
        if total > counted:
            counted, progress = total, time.perf_counter()
        if time.perf_counter() - progress > _PATIENCE:
            break
        time.sleep(0.001)
    return total


def texts() -> list[str]:
    """The workload's words in sentences of ten, as many as fill whole batches."""
    words = workload.key_sequence()
    step = WORDS_IN_A_SENTENCE
    found = [" ".join(words[at : at + step]) for at in range(0, len(words) - step, step)]
    return found[: len(found) // SENTENCES * SENTENCES]


def truth(sent: int) -> Counter[str]:
    """The counts of the words of the first ``sent`` sentences."""
    all_of_them = texts()
    passes, rest = divmod(sent, len(all_of_them))
    found: Counter[str] = Counter()
    for times, part in ((passes, all_of_them), (1, all_of_them[:rest])):
        for word, count in Counter(w for text in part for w in text.split()).items():
            found[word] += times * count
    return found


class Sentence(Event):
    """Ten words."""

    text: str


class Word(Event):
    word: str


class Baton(Event):
    """An event that is passed on; its two keys are in two partitions, if there are two."""

    here: str
    there: str


class Parcel(Event):
    """As a baton, with a list."""

    here: str
    there: str
    things: list[str]


class Split(ProcessingElement):
    """Puts the words of a sentence on the stream of words."""

    words: Stream

    def on_event(self, sentence: Sentence) -> None:
        put = self.words.put
        for word in sentence.text.split():
            put(Word(word))


class Count(ProcessingElement):
    n: int = 0

    def on_event(self, _: Word | Baton | Parcel) -> None:
        self.n += 1


def word_count() -> App:
    """The app that splits sentences into words on a keyed stream, and counts them."""
    app = App("word-count")
    split = app.create_pe(Split)
    split.set_singleton()
    app.create_input_stream("sentences", split)
    split.words = app.create_stream("words", app.create_pe(Count), key="word", types=Word)
    return app


class Relay(ProcessingElement):
    """Passes a baton, or a parcel, on."""

    onward: Stream

    def on_event(self, event: Baton | Parcel) -> None:
        self.onward.put(event)


class Pack(ProcessingElement):
    """Puts a parcel with a list of its own."""

    onward: Stream

    def on_event(self, event: Baton | Parcel) -> None:
        self.onward.put(Parcel(event.here, event.there, [event.here, event.there]))


def hops(count: int, alternate: bool, lists: str) -> App:
    """A chain of ``count`` streams after the first; every other one is keyed by ``there``.

    With ``lists`` that are "made" each PE makes an event with a list, or passes it on if "passed".
    """
    app = App("hops")
    onward = None
    for number in range(count, -1, -1):
        relay = Pack if lists == "made" or (lists and not number) else Relay
        pe: Any = app.create_pe(Count if onward is None else relay, name=f"pe{number}")
        if onward is not None:
            pe.onward = onward
        key = "there" if alternate and number % 2 else "here"
        if number:
            kind = Parcel if lists else Baton
            onward = app.create_stream(f"hop{number}", pe, key=key, types=kind)
        else:
            app.create_input_stream("batons", pe, key=key, types=Baton)
    return app


def made_batons(size: int) -> list[Baton]:
    """``size`` events with a thousand pairs of keys, each pair in two partitions."""
    halves: tuple[list[str], list[str]] = ([], [])
    partitioner, number = Partitioner(2), 0
    while min(map(len, halves)) < 1000:
        key = f"key-{number}"
        halves[partitioner.partition_of(key)].append(key)
        number += 1
    pairs = cycle(zip(halves[0][:1000], halves[1][:1000], strict=True))
    return [Baton(*(pair if n % 2 else pair[::-1])) for n, pair in enumerate(islice(pairs, size))]


def make(task: dict[str, Any]) -> App:
    if task["app"] == "words":
        return word_count()
    return hops(task["hops"], task["alternate"], task["lists"])


# -- the roles -------------------------------------------------------------------------------------


def batches() -> list[list[Sentence]]:
    """One pass over the sentences."""
    found = [Sentence(text) for text in texts()]
    return [found[at : at + SENTENCES] for at in range(0, len(found), SENTENCES)]


def sentences(task: dict[str, Any]) -> None:
    """Send sentences for some seconds; report how many, and the time."""

    async def main() -> None:
        async with Client(task["address"]) as client:
            stream = await client.stream("sentences")
            answer(**await send_for(task["seconds"], stream, cycle(batches())))

    trio.run(main)


def words_limit(task: dict[str, Any]) -> None:
    """The bare loop of word-count: decode, split, count, in one process."""
    encode = msgspec.msgpack.Encoder().encode
    bodies = [encode(batch) for batch in batches()]
    decoder = msgspec.msgpack.Decoder(list[Sentence])
    app = word_count()
    app.freeze()
    create: Any = app.prototypes["Count"][0].make
    instances: dict[str, Any] = {}
    tune_python()
    words, began = 0, time.perf_counter()
    while time.perf_counter() - began < task["seconds"]:
        for body in bodies:
            for sentence in decoder.decode(body):
                for text in sentence.text.split():
                    word = Word(text)
                    k = word.word
                    pe = instances.get(k)
                    if pe is None:
                        pe = instances[k] = create(k, None)
                    pe.on_event(word)
        words += len(bodies) * SENTENCES * WORDS_IN_A_SENTENCE
    answer(events=words, seconds=time.perf_counter() - began)


def batons(task: dict[str, Any]) -> None:
    """Send batons; report the time."""

    async def main() -> None:
        async with Client(task["address"]) as client:
            stream = await client.stream("batons")
            chunk = made_batons(_BATONS)
            before, began, left = usage()["cpu_s"], time.perf_counter(), task["events"]
            while left:
                part = chunk[:left]
                await stream.send_many(part)
                left -= len(part)
            await stream.flush()
            answer(seconds=time.perf_counter() - began, cpu_s=usage()["cpu_s"] - before)

    trio.run(main)


def member(task: dict[str, Any]) -> None:
    """Run a container of the app that a task names, alone or as a member."""

    async def main() -> None:
        app = make(task)
        if not task.get("folder"):
            await run(container_of(app, task["settings"]))
            return
        coordination = FolderCoordination(Path(task["folder"]))
        async with coordination.session(task["member"]) as session:
            enrolment = Enrolment(session, CLUSTER, app.name, task["member"], task["expected"])
            await run(container_of(app, task["settings"], node=task["member"], enrolment=enrolment))

    async def run(container: Container) -> None:
        async with running(container):
            answer(address=container.address)
            while await asked():
                answer(
                    counts=counts(container) if task.get("whole") else {},
                    total=total(container),
                    unfinished=unfinished(container),
                    **usage(),
                )

    def unfinished(container: Container) -> list[str]:
        """The events that wait at the container, and those it has shed or could not send."""
        found = container.statistics()
        waiting = [
            f"{each.stage} {each.stream}/{each.partition}: {each.depth} wait, "
            f"{each.in_flight} in flight, shed {each.shed}"
            for each in found.stages
            if each.depth or each.in_flight or any(each.shed.values())
        ]
        return [*waiting, *(f"lost: {lost}" for lost in (found.dropped, found.unsendable) if lost)]

    def counted(container: Container) -> Callable[[], Any]:
        last = "Count" if task["app"] == "words" else f"pe{task['hops']}"
        return lambda: (
            pe for one in container.tasks.values() for pe in one.instances[last].values()
        )

    def counts(container: Container) -> dict[str, int]:
        return {str(pe.key): pe.n for pe in counted(container)()}

    def total(container: Container) -> int:
        return sum(pe.n for pe in counted(container)())

    trio.run(main)
