"""Nodes with a log for tests of Spark: processes, for Spark and they run at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s4node import Event, SyncClient
from s4node.errors import StateError
from s4node.spark.connection import ask
from s4node.state.job import folder_of, saved_state, task_of

ROOT = Path(__file__).resolve().parents[1]

IDLE = """
from s4node import App, Event, ProcessingElement


class Nothing(Event):
    word: str


class Ignore(ProcessingElement):
    def on_event(self, event: Nothing) -> None:
        pass


app = App("idle")
pe = app.create_pe(Ignore)
pe.set_singleton()
app.create_input_stream("nothing", pe)
"""


class Click(Event):
    user: str
    number: int
    page: str | None = None


@dataclass
class Node:
    """A running node with a log."""

    address: str
    process: subprocess.Popen[bytes]

    def create(self, stream: str, partitions: int = 1, key: str = "", **more: Any) -> None:
        ask([self.address], 10, "create", stream=stream, partitions=partitions, key=key, **more)

    def append(self, stream: str, events: Iterable[Any], key: str | None = None) -> None:
        """Append events, and wait until they are on disk."""
        listed = list(events)
        with SyncClient(self.address) as client:
            types = {type(event) for event in listed}
            client.stream(stream, key=key, types=tuple(types)).send_many(listed)


@contextmanager
def running_node(folder: Path, *settings: str, target: str = "", port: int = 0) -> Iterator[Node]:
    """A node with a log in ``folder``, and an app that does nothing unless ``target`` is one."""
    folder.mkdir(parents=True, exist_ok=True)
    if not target:
        (folder / "idle.py").write_text(IDLE)
        target = str(folder / "idle.py")
    command = [sys.executable, "-m", "s4node", "run", target, "--json"]
    command += ["--listen", f"tcp://127.0.0.1:{port}"]
    given = (f"s4.log.folder={folder / 'log'}", f"s4.state.folder={folder / 'state'}", *settings)
    for each in given:
        command += ["-p", each]
    with (folder / "node.err").open("ab") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (folder / "node.err").read_text()
        yield Node(json.loads(line)["address"], process)
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def to_the_end(query: Any) -> Any:
    """Run a streaming query on what there is now; returns it when it has ended.

    Spark gives a Python worker of a streaming source ten seconds to start, whatever is set, which a
    busy machine may not keep. Then the query runs again.
    """
    from pyspark.errors import StreamingQueryException

    for attempt in range(4):
        try:
            started = query.trigger(availableNow=True).start()
            started.awaitTermination()
            break
        except StreamingQueryException as error:
            if attempt == 3 or "worker failed to connect back" not in str(error):
                raise
    return started


def s4(*words: str, **values: str) -> str:
    done = ended(*words, **values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ended(*words: str, **values: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "s4node", *words]
    for name, value in values.items():
        command += ["-p", f"{name}={value}"]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def run_to_the_end(node: Node, app: str, values: dict[str, str], total: int, *more: str) -> None:
    command = [sys.executable, "-m", "s4node", "run", app, *more]
    command += ["--listen", "tcp://127.0.0.1:0", "--json"]
    for name, value in values.items():
        command += ["-p", f"{name}={value}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    try:
        assert process.stdout.readline(), "it did not start"
        name, folder = app.rpartition(":")[2], Path(values["s4.state.folder"])
        deadline = time.monotonic() + 200
        while (found := progress(folder, name)) != total:
            assert time.monotonic() < deadline, f"it read {found} of {total} events"
            time.sleep(0.2)
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def progress(folder: Path, app: str) -> int:
    """The events that the tasks of a job have read, as of their last commits."""
    job = folder_of(str(folder), "default", app)
    names = [each.name for each in (job / "tasks").iterdir()] if (job / "tasks").exists() else []
    total = 0
    for name in names:
        with suppress(StateError), saved_state(job, task_of(name)) as state:
            total += sum(state.positions().values()) if state is not None else 0
    return total
