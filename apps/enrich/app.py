"""Enrich: each click is completed by what a service knows of its user.

The service is asked over TCP: a line with the user goes out, a line with the city comes back. Tasks
wait for many answers at a time, and the clicks of one user stay in their order::

    s4 run apps/enrich/app.py -p s4.app.service=127.0.0.1:15001 \\
                              -p task.max.concurrency=16 -p task.order=key
"""

from collections.abc import Mapping
from typing import Any

import trio

from s4node import Collector, Coordinator, Envelope, Event, TaskApp


class Click(Event):
    user: str
    number: int = 0


class Located(Event):
    user: str
    number: int
    city: str


class Locate:
    def init(self, config: Mapping[str, str], context: Any) -> None:
        self.host, _, port = config["service"].rpartition(":")
        self.port = int(port)

    async def process(
        self, envelope: Envelope, collector: Collector, coordinator: Coordinator
    ) -> None:
        click = envelope.message
        async with await trio.open_tcp_stream(self.host, self.port) as service:
            await service.send_all(f"{click.user}\n".encode())
            answer = b""
            async for part in service:
                answer += part
        collector.send("located", Located(click.user, click.number, answer.decode().strip()))


class Enrich(TaskApp):
    """Input "clicks", output "located"."""

    def __init__(self) -> None:
        super().__init__("enrich", Locate)

    def on_init(self) -> None:
        self.create_input_stream("clicks", key="user", types=Click)
        self.create_output_stream("located", key="user", types=Located)
