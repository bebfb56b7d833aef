"""The door of a node: where programs outside knock to hear which containers run a stream's app.

Rules
- It takes no events. A hello is answered with the addresses of the containers that run the app;
  the peer says hello there.
- Whoever asked is told again when these containers change, for as long as it stays connected: so a
  producer finds the next ones when all that it knew have gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from s4node.comm import frame as wire
from s4node.comm.listener import Connection, Listener, check_reachable
from s4node.config import Config

Lookup = Callable[[str, bool], Sequence[str] | str]
"""The addresses of the containers whose app takes a stream, or why there are none. With True, of
those whose app puts events on it."""


class Door:
    """Answers hellos at the node's own address."""

    def __init__(self, config: Config, node: str, lookup: Lookup) -> None:
        self._node = node
        self._lookup = lookup
        self._asked: dict[Connection, dict[tuple[str, bool], tuple[str, ...]]] = {}
        self._work = trio.lowlevel.ParkingLot()
        check_reachable(config)
        self._listener = Listener.configured(config, self, self._wake)

    @property
    def address(self) -> str:
        """Where the door is."""
        return self._listener.address

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer until cancelled; raises ConfigError if the address cannot be listened on."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._listener.serve)
            task_status.started()
            while True:
                due = self._listener.flush(trio.current_time())
                with trio.move_on_at(float("inf") if due is None else due):
                    await self._work.park()

    def news(self) -> None:
        """Containers have come or gone: tell those who asked for their streams."""
        for connection, told in self._asked.items():
            for wish in told:
                found = self._lookup(*wish)
                if not isinstance(found, str):
                    self._answer(connection, wish, tuple(found))
        self._wake()

    def _wake(self) -> None:
        self._work.unpark_all()

    # -- what stands behind the listener -----------------------------------------------------

    def on_frame(self, frame: wire.Frame, connection: Connection) -> None:
        """Answer a hello; anything else is for a container."""
        header = frame.header
        if isinstance(header, wire.Hello):
            wish = header.stream, bool(header.headers.get(wire.SUBSCRIBE))
            found = self._lookup(*wish)
            if isinstance(found, str):
                answer = wire.Hello(self._node, "", header.stream, error=found)
                connection.answer(wire.encode_frame(answer))
            else:
                self._asked.setdefault(connection, {})[wish] = ()
                self._answer(connection, wish, tuple(found))
        elif isinstance(header, wire.Data):
            connection.bad_frame("the node's door takes no events; say hello first", header)
        elif isinstance(header, wire.Drain):
            connection.silent.set()

    def on_drained(self) -> None:
        """All frames that had arrived have been handled."""

    def on_gone(self, connection: Connection) -> None:
        """The peer has gone."""
        self._asked.pop(connection, None)

    def _answer(
        self, connection: Connection, wish: tuple[str, bool], nodes: tuple[str, ...]
    ) -> None:
        """Tell a peer of containers that it has not heard of; it waits while there are none."""
        told = self._asked[connection]
        if nodes and nodes != told[wish]:
            told[wish] = nodes
            answer = wire.Hello(self._node, "", wish[0], headers={wire.NODES: list(nodes)})
            connection.answer(wire.encode_frame(answer))
