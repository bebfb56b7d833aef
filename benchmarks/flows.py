"""The apps of the benchmarks with internal streams, and the role that runs a container.

Rules
- A member reports its address when it owns its partitions; on ``{"stop": false}`` it reports its
  counts so far, on ``{}`` it ends.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import trio

from benchmarks.process import usage
from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import Stream
from s4node.cluster.coordination.enrolment import Enrolment
from s4node.cluster.tree.folder import FolderCoordination
from s4node.config import settings
from s4node.config.config import Config
from s4node.events.event import Event
from s4node.events.keys import Partitioner
from s4node.process.serve import tune_python
from s4node.runtime.container.container import Container

CLUSTER = "bench"
WORDS_IN_A_SENTENCE = 10


class Sentence(Event):
    """Ten words."""

    text: str


class Word(Event):
    """A word of a sentence."""

    word: str


class Baton(Event):
    """An event that is passed on; its two keys are in two partitions, if there are two."""

    here: str
    there: str


class Split(ProcessingElement):
    """Puts the words of a sentence on the stream of words."""

    words: Stream

    def on_event(self, sentence: Sentence) -> None:
        put = self.words.put
        for word in sentence.text.split():
            put(Word(word))


class Count(ProcessingElement):
    """Counts the events of its key."""

    n: int = 0

    def on_event(self, _: Word | Baton) -> None:
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
    """Passes a baton on."""

    onward: Stream

    def on_event(self, baton: Baton) -> None:
        self.onward.put(baton)


def hops(count: int, alternate: bool) -> App:
    """A chain of ``count`` streams after the first; every other one is keyed by ``there``."""
    app = App("hops")
    onward = None
    for number in range(count, -1, -1):
        pe: Any = app.create_pe(Count if onward is None else Relay, name=f"pe{number}")
        if onward is not None:
            pe.onward = onward
        key = "there" if alternate and number % 2 else "here"
        if number:
            onward = app.create_stream(f"hop{number}", pe, key=key, types=Baton)
        else:
            app.create_input_stream("batons", pe, key=key, types=Baton)
    return app


def batons(size: int) -> list[Baton]:
    """``size`` events with a thousand pairs of keys, each pair in two partitions."""
    halves: tuple[list[str], list[str]] = ([], [])
    partitioner, number = Partitioner(2), 0
    while min(map(len, halves)) < 1000:
        key = f"key-{number}"
        halves[partitioner.partition_of(key)].append(key)
        number += 1
    pairs = cycle(zip(halves[0][:1000], halves[1][:1000], strict=True))
    return [Baton(*(pair if n % 2 else pair[::-1])) for n, pair in zip(range(size), pairs)]  # noqa: B905


def make(task: dict[str, Any]) -> App:
    """Make the app that a task names."""
    if task["app"] == "words":
        return word_count()
    return hops(task["hops"], task["alternate"])


def member(task: dict[str, Any]) -> None:
    """Run a container of the app that a task names, alone or as a member."""

    def say(**message: Any) -> None:
        print(json.dumps(message), flush=True)

    def listen() -> dict[str, Any]:
        return json.loads(sys.stdin.readline() or "{}")  # type: ignore[no-any-return]

    async def main() -> None:
        config = Config.from_values(
            {"s4.listener.address": "tcp://127.0.0.1:0", **task["settings"]}
        )
        app = make(task)
        if not task.get("folder"):
            await run(Container(app, config))
            return
        coordination = FolderCoordination(Path(task["folder"]))
        async with coordination.session(task["member"]) as session:
            enrolment = Enrolment(session, CLUSTER, app.name, task["member"], task["expected"])
            await run(Container(app, config, node=task["member"], enrolment=enrolment))

    async def run(container: Container) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(container.run)
            await container.ready.wait()
            tune_python(container.config)
            say(address=container.address, partitions=container.config[settings.CLUSTER_PARTITIONS])
            while not await trio.to_thread.run_sync(lambda: listen().get("stop", True)):
                say(
                    counts=counts(container) if task.get("whole") else {},
                    total=total(container),
                    unfinished=unfinished(container),
                    **usage(),
                )
            container.stop()

    def unfinished(container: Container) -> list[str]:
        """What waits at the container, and what it has shed or could not send."""
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
