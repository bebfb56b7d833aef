"""A node that is asked over HTTP: a real process, with an app that counts clicks."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import trio
from harness import ANY_PORT, QUICK, NodeProcess, free_port, run_s4, s4_process, until_told
from prometheus_client.parser import text_string_to_metric_families

from s4node import Event

COUNTER = """\
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
class Count(ProcessingElement):
    clicks: int = 0
    def on_event(self, click: Click):
        self.clicks += 1
        self.app.metrics.counter("clicks seen").increment()
class Counter(App):
    def on_init(self):
        self.create_input_stream("clicks", self.create_pe(Count), key="user")
        self.metrics.gauge("no number", lambda: {})
        self.metrics.gauge("answer", lambda: 42)
app = Counter("counter")
"""


class Click(Event):
    user: str


class Told(NamedTuple):
    """An answer of HTTP."""

    status: int
    text: str
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.text)


async def told(url: str, body: object = None, **headers: str) -> Told:
    """The answer to a GET, or to a POST of ``body``, as JSON unless it is bytes."""
    names = {name.replace("_", "-"): text for name, text in headers.items()}
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    if data is not None:
        names.setdefault("Content-Type", "application/json")

    def ask() -> Told:
        request = urllib.request.Request(url, data, names)
        try:
            with urllib.request.urlopen(request) as answer:
                return Told(answer.status, answer.read().decode(), answer.headers)
        except urllib.error.HTTPError as error:
            return Told(error.code, error.read().decode(), error.headers)

    return await trio.to_thread.run_sync(ask, abandon_on_cancel=True)


async def get(url: str) -> tuple[int, str]:
    return (await told(url))[:2]


class Monitored:
    def __init__(self, process: NodeProcess, url: str, folder: Path, name: str) -> None:
        self.process = process
        self.url = url
        self.name = name
        self._folder = folder

    async def get(self, path: str) -> tuple[int, str]:
        return await get(self.url + path)

    async def value(self, name: str, /, **labels: str) -> float | None:
        """The value of a sample at /metrics."""
        status, text = await self.get("/metrics")
        assert status == 200
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return None

    async def s4(self, *command: str) -> tuple[int, str]:
        """Exit status and errors of a command for the cluster."""
        where = (
            *("--cluster", "shop", "-p", f"s4.coordination.folder={self._folder / 's4'}"),
            *("-p", f"s4.state.folder={self._folder / 'state'}"),
        )
        done = await run_s4(*command, *where, cwd=self._folder)
        return done.returncode, done.stderr

    async def deploy(self, *options: str, source: str = COUNTER) -> tuple[int, str]:
        (self._folder / "app.py").write_text(source)
        return await self.s4("deploy", "app.py", *options)

    async def ready(self) -> None:
        await until_told(lambda: self.get("/readyz"), lambda told: told[0] == 200)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[set[str]]:
        """All that the node says at /readyz during the block."""
        said: set[str] = set()

        async def watch() -> None:
            while True:
                said.add((await self.get("/readyz"))[1])
                await trio.sleep(0.02)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            yield said
            nursery.cancel_scope.cancel()

    async def owned_by(self, name: str) -> int:
        """The number of partitions of the app that a node owns."""
        ((app,),) = [cluster["apps"] for cluster in json.loads((await self.get("/status"))[1])]
        owners: list[str] = app["owners"]
        return owners.count(name)


@asynccontextmanager
async def monitored(folder: Path, name: str = "one") -> AsyncIterator[Monitored]:
    port = free_port()
    settings = {
        **QUICK,
        "s4.listener.address": ANY_PORT,
        "s4.http.address": f"tcp://127.0.0.1:{port}",
        "s4.state.folder": str(folder / "state"),
    }
    options = [word for key, value in settings.items() for word in ("-p", f"{key}={value}")]
    command = ("node", "shop", "--name", name, "--folder", folder / "s4", *options)
    async with s4_process(*command, cwd=folder) as process:
        yield Monitored(process, f"http://127.0.0.1:{port}", folder, name)
