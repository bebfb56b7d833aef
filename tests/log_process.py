"""A process that has an embedded log: ``append FOLDER NUMBER...`` or ``full FOLDER``.

``append`` appends frames of a producer for each NUMBER, from which it goes on, to 2 partitions, and
prints ``producer number`` when all of it is acknowledged below that number. ``full`` fills a
log until the disk takes no more (a limit on the length of files that this process sets itself), and
prints what happened.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import trio
from harness import until
from log_frames import append, events, numbered, read_all

from s4node.errors import S4Error
from s4node.log.store import LogSettings, open_log
from s4node.log.streams import LogPartition
from s4node.log.writer import Answer


async def appending(folder: str, *acknowledged: str) -> None:
    async with open_log(LogSettings(Path(folder), retention_ms=0)) as log:
        stream = await log.create("clicks", 2)
        async with trio.open_nursery() as nursery:
            for index, number in enumerate(acknowledged):
                partition = stream.partitions[index % 2]
                nursery.start_soon(produce, partition, f"p{index}", int(number))


async def produce(partition: LogPartition, name: str, at: int) -> None:
    """Append frames from this number on, four at a time, for ever."""
    free = trio.Semaphore(4)

    def append_one(first: int) -> None:
        def done(answer: Answer) -> None:
            assert not isinstance(answer, S4Error), answer
            print(name, first + 5, flush=True)
            free.release()

        partition.append(numbered(name, first, 5, width=2000), done)

    while True:
        await free.acquire()
        append_one(at)
        at += 5


async def full(folder: str) -> None:
    async with open_log(LogSettings(Path(folder))) as log:
        stream = await log.create("clicks", 2)
        partition = stream.partitions[0]
        await append(partition, *[numbered("a", n * 10, 10, width=1000) for n in range(10)])
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
        answers: list[Answer] = []
        for n in range(10, 400):
            partition.append(numbered("a", n * 10, 10, width=1000), answers.append)
        await until(lambda: log.writer.trouble)
        print("full:", log.writer.trouble)
        end = partition.bounds.upcoming
        rows = await read_all(partition)
        assert events(rows) == [(n, "a", n) for n in range(end)]
        assert end - 100 == sum(a.count for a in answers if not isinstance(a, S4Error)) < 3900
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
        await until(lambda: len(answers) == 390)
        assert not any(isinstance(answer, S4Error) for answer in answers)
        assert events(await read_all(partition)) == [(n, "a", n) for n in range(4000)]
        await until(lambda: not log.writer.trouble)
        print("went on")


if __name__ == "__main__":
    if sys.argv[1] == "append":
        trio.run(appending, *sys.argv[2:])
    else:
        trio.run(full, sys.argv[2])
