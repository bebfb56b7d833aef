"""Apps that tests of commands run, and how they send to them and read what is logged."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from harness import NodeProcess, run_s4

from s4node import Event
from s4node.cli.main import main

HELLO = """\
from s4node import App, ProcessingElement
class Hello(ProcessingElement):
    def on_event(self, event): print(f"Hello {event.name}!")
app = App("hello")
app.create_input_stream("names", app.create_pe(Hello), key="name")
"""


COUNTER = """\
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
class Count(ProcessingElement):
    clicks: int = 0
    def on_event(self, click: Click): self.clicks += 1; print(self.key, self.clicks)
app = App("counter")
app.create_input_stream("clicks", app.create_pe(Count), key="user")
"""


DIVIDE = """\
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
    n: int
class Divide(ProcessingElement):
    def on_event(self, click: Click):
        print(100 // click.n)
app = App("divider")
app.create_input_stream("clicks", app.create_pe(Divide), key="user")
"""


SLOW = """\
import trio
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
    n: int
class Slow(ProcessingElement):
    async def on_event(self, click: Click):
        await trio.sleep(0.001)
        print(click.n)
class Slowly(App):
    def on_init(self):
        self.create_input_stream("clicks", self.create_pe(Slow), key="user")
    def on_close(self):
        print("closed")
"""


STUCK = """\
import time, trio
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
    n: int
class Stuck(ProcessingElement):
    {kind} on_event(self, click: Click):
        print("began")
        {wait}
app = App("stuck")
app.create_input_stream("clicks", app.create_pe(Stuck), key="user")
"""


class Click(Event):
    user: str
    n: int = 0


async def send(
    folder: Path, node: NodeProcess, stream: str, lines: str | bytes, *arguments: str
) -> subprocess.CompletedProcess[str]:
    stdin = lines if isinstance(lines, bytes) else lines.encode()
    return await run_s4("send", stream, "--to", node.address, *arguments, cwd=folder, stdin=stdin)


def logs(node: NodeProcess) -> list[dict[str, object]]:
    """The lines of stderr that are JSON objects."""
    return [json.loads(line) for line in node.stderr if line.startswith("{")]


def ended(words: list[str]) -> int:
    """The exit status of a command that runs in this process, such as one that is refused."""
    try:
        return main(words)
    except SystemExit as error:  # of the parser of the command line
        return int(error.code or 0)
