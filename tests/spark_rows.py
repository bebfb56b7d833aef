"""Rows for tests of Spark's sink, which differ each time that they are computed; and its node.

The key of a row is its number. Its user is drawn anew by every computation, so that a row that is
written twice, or taken from two attempts, shows.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from s4node import Event, Oldest, SyncClient
from s4node.spark.connection import ask
from tests.harness import ROOT, environment, free_port

PATIENCE = 60.0


class Row(Event):
    user: str
    n: int


class Wide(Event):
    user: str
    text: str


class Maybe(Event):
    user: str
    n: int | None = None


class Node:
    """A node with a log at a fixed port, as a process that can be killed and started again.

    With ``inside``, which precedes its command, it may run where ``host`` is another machine.
    """

    def __init__(
        self, folder: Path, host: str = "127.0.0.1", inside: Callable[..., list[str]] | None = None
    ) -> None:
        self.folder = folder
        self.address = f"tcp://{host}:{free_port()}"
        self._inside = inside
        self.process: subprocess.Popen[bytes] | Any = None
        self.settings: dict[str, str] = {}

    def start(self, fault: str = "", limits: Callable[[], None] | None = None) -> None:
        from forkserver import Request, forks  # jobs of Spark import this module, too

        self.stop()
        given = {
            "s4.log.folder": str(self.folder / "log"),
            "s4.listener.address": self.address,
            "s4.logger_format": "json",
            **self.settings,
        }
        arguments = ["node", "demo", "--json", "--folder", str(self.folder / "cluster")]
        for name, value in given.items():
            arguments += ["-p", f"{name}={value}"]
        env = environment(S4_FAULT=fault)
        with (self.folder / "stderr").open("ab") as stderr:
            if self._inside is None and limits is None:
                request = Request("s4node", arguments, str(self.folder), env, own_session=False)
                self.process = forks.fork_sync(request, stderr)
            else:
                command = [sys.executable, "-m", "s4node", *arguments]
                self.process = subprocess.Popen(
                    self._inside(*command) if self._inside else command,
                    cwd=self.folder,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env=env,
                    preexec_fn=limits,
                )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if fault and not line:  # it completes at its start what was decided before
            assert self.process.wait(PATIENCE) == -signal.SIGKILL
            return
        assert json.loads(line)["address"] == self.address

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)
        assert self.process is None or self.process.stdout is not None
        if self.process is not None:
            self.process.stdout.close()

    @property
    def died(self) -> bool:
        assert self.process is not None
        return self.process.poll() == -signal.SIGKILL

    def ask(self, question: str, **arguments: Any) -> dict[str, Any]:
        return ask([self.address], PATIENCE, question, **arguments)

    def create(self, stream: str, partitions: int = 4, key: str = "user") -> None:
        self.ask("create", stream=stream, partitions=partitions, key=key)

    def count(self, stream: str) -> int:
        return sum(each["upcoming"] for each in self.ask("describe", stream=stream)["partitions"])

    def rows(self, stream: str, kind: type = Row) -> list[Any]:
        total = self.count(stream)
        with (
            SyncClient(self.address) as client,
            client.subscribe(stream, types=kind, start=Oldest()) as events,
        ):
            return [next(events) for _ in range(total)]

    @property
    def resident_bytes(self) -> int:
        """The memory that its process has now."""
        assert self.process is not None
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    @property
    def staged(self) -> list[str]:
        """The folders of spools."""
        return [path.name for path in (self.folder / "log").glob("_sink.*")]


@contextmanager
def node_in(folder: Path, **settings: str) -> Iterator[Node]:
    node = Node(folder)
    node.settings = settings
    node.start()
    try:
        yield node
    finally:
        node.stop()


def check_exact(rows: list[Row], total: int) -> None:
    found = Counter(row.n for row in rows)
    doubled = sum(count - 1 for count in found.values())
    lost = total - len(found)
    assert (doubled, lost) == (0, 0), f"{doubled} rows doubled, {lost} lost, of {total}"


def send_numbered(client: SyncClient, stream: str, parts: Iterable[list[Row]]) -> None:
    """Send rows as a producer whose rows are recognised by their numbers: skip as many as were sent
    before, whichever they were."""
    opened = client.stream(stream, key=lambda _: "one partition")
    skip = sum(opened.resume_at(partition) for partition in range(opened.partitions))
    for rows in parts:
        opened.send_many(rows[skip:])
        client.flush()
        skip = max(0, skip - len(rows))


def until(true: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def python_path() -> None:
    """Have Spark's workers find the package and the tests."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])


# -- what happens to tasks ------------------------------------------------------------------------


def drawn_anew(batches: Iterator[Any]) -> Iterator[Any]:
    """The rows of a partition in another order, and with other users, in each computation, as after
    a shuffle whose blocks come in another order, or from a function without a seed."""
    import pyarrow as pa

    dice = random.SystemRandom()
    numbers = [n for batch in batches for n in batch.column("n").to_pylist()]
    dice.shuffle(numbers)
    for start in range(0, len(numbers), 500):
        some = numbers[start : start + 500]
        users = [f"u{dice.randrange(100)}" for _ in some]
        yield pa.record_batch({"user": users, "n": pa.array(some, pa.int64())})


def failing_once(batches: Iterator[Any]) -> Iterator[Any]:
    """The first attempt of each task raises after some of its rows."""
    from pyspark import TaskContext

    context = TaskContext.get()
    for number, batch in enumerate(batches):
        if context.attemptNumber() == 0 and number == 2:
            raise RuntimeError("the first attempt fails")
        yield batch


def failing_one(batches: Iterator[Any]) -> Iterator[Any]:
    """The first attempt of one task raises after some of its rows."""
    from pyspark import TaskContext

    one = TaskContext.get().partitionId() == 1
    return failing_once(batches) if one else batches


def failing(batches: Iterator[Any]) -> Iterator[Any]:
    """Each attempt raises after some of its rows."""
    for number, batch in enumerate(batches):
        if number == 2:
            raise RuntimeError("each attempt fails")
        yield batch


def dying_once(batches: Iterator[Any]) -> Iterator[Any]:
    """The Python worker of the first attempts is killed after some rows."""
    from pyspark import TaskContext

    context = TaskContext.get()
    for number, batch in enumerate(batches):
        if context.attemptNumber() == 0 and number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch


def killing(batches: Iterator[Any], marker: str) -> Iterator[Any]:
    """The executor, a JVM, of the first attempt that comes here is killed after some rows."""
    for number, batch in enumerate(batches):
        if number == 3:
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(_jvm(), signal.SIGKILL)
        yield batch


def holding(batches: Iterator[Any], marker: str) -> Iterator[Any]:
    """The first attempt that comes here stops after some rows, until it is killed."""
    for number, batch in enumerate(batches):
        if number == 3:
            with suppress(FileExistsError):
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                signal.pause()
        yield batch


def killing_process(pid: int, batches: Iterator[Any]) -> Iterator[Any]:
    """Another process is killed amid the rows."""
    for number, batch in enumerate(batches):
        if number == 3:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        yield batch


def going_on(end: Path, batches: Iterator[Any]) -> Iterator[Any]:
    """Rows without a user for a minute, and then a file."""
    import pyarrow as pa

    for _ in batches:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            yield pa.record_batch({"user": pa.nulls(1000, pa.string()), "n": range(1000)})
        end.touch()


def _jvm() -> int:
    """The nearest process above this one that is a Java."""
    pid = os.getppid()
    while "java" not in Path(f"/proc/{pid}/comm").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid
