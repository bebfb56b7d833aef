"""The HTTP server of a process: all that it answers, by the names of routes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from s4node.cluster.node.node import Node
from s4node.cluster.node.running import Running
from s4node.config import settings
from s4node.config.config import Config
from s4node.http.messages import JSON, Answer, Request
from s4node.http.monitor import Monitor, Watched, WatchedNode, WatchedProcess
from s4node.http.openapi import description
from s4node.http.reading import Reading
from s4node.http.routes import nothing_here
from s4node.http.sending import Reach, Sending
from s4node.http.server import HttpServer
from s4node.http.states import States
from s4node.net.certificates.credentials import Credentials

_PAGE = Path(__file__).parent / "page"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Files:
    """The files of the page, and the description of all paths."""

    def __init__(self) -> None:
        self._description = Answer(200, msgspec.json.encode(description()), JSON)
        self._answers = {
            file.name: Answer(200, file.read_bytes(), _TYPES[file.suffix])
            for file in _PAGE.iterdir()
            if file.suffix in _TYPES
        }

    async def description(self, _: Request) -> Answer:
        return self._description

    async def answer(self, request: Request) -> Answer:
        name = request.parameters.get("file", "index.html")
        return self._answers.get(name) or nothing_here()


def server_of(node: Node, config: Config) -> HttpServer:
    """The HTTP server of a node; raises ConfigError."""
    reach = Reach(lambda: [node.address], Credentials.configured(config))
    return _server(config, WatchedNode(node), reach)


def server_of_process(config: Config, running: Callable[[], Running | None]) -> HttpServer:
    """The HTTP server of a process of one app, which has a thread of its own; raises ConfigError.

    ``running`` says where the process is, once that is known.
    """
    cluster, credentials = config[settings.CLUSTER_NAME], Credentials.configured(config)

    def addresses() -> list[str]:
        found = running()
        return [found.address] if found is not None and found.address else []

    watched = WatchedProcess(cluster, running, credentials)
    return _server(config, watched, Reach(addresses, credentials))


def _server(config: Config, watched: Watched, reach: Reach) -> HttpServer:
    monitor, files, sending = Monitor(watched), Files(), Sending(reach)
    reading = Reading(reach)
    states = States(watched, reach.credentials)
    answers = {
        "live": monitor.live,
        "ready": monitor.ready,
        "metrics": monitor.metrics,
        "status": monitor.status,
        "why": monitor.why,
        "description": files.description,
        "page": files.answer,
        "send": sending.post,
        "read": reading.subscribe,
        "key": states.key,
        "keys": states.keys,
    }
    return HttpServer(config, answers, (sending.run, reading.run))
