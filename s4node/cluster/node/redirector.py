"""The redirector of a node: answers outside programs which containers run a stream's app.

Rules
- The redirector takes no events. It answers a hello with the addresses of the containers that run
  the app; the peer says hello there.
- It reports changes of these containers to a client for as long as the client stays connected. So a
  producer finds the next containers when all that it knew have ended.
- It says how the node is to those who may ask that (``node_status``).
- If the node has a log, the redirector serves its streams, reports its metrics, and a stop waits
  for its files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio

from s4node import tokens
from s4node.cluster.node.node_status import NodeStatus, StatusAnswers
from s4node.config import settings
from s4node.config.config import Config
from s4node.logger import get_logger
from s4node.metrics.process import process_statistics
from s4node.metrics.reporter import reporters_of
from s4node.metrics.reporting import Reporting
from s4node.metrics.statistics import ListenerStatistics
from s4node.metrics.table import Sample, samples
from s4node.net.ingress.connection import Connection
from s4node.net.ingress.listener import Listener, no_log
from s4node.net.ingress.served_address import check_reachable
from s4node.net.wire import frame as wire

if TYPE_CHECKING:
    from s4node.log.host import LogHost

log = get_logger("s4node.cluster")

Lookup = Callable[[str, bool], Sequence[str] | str]
"""The addresses of the containers whose app takes a stream, or why there are none. With True, of
those whose app puts events on it."""

_FAREWELL_SECONDS = 1.0


class Redirector:
    """Answers hellos at the node's own address; ``status`` says how the node is."""

    held = False

    def __init__(
        self,
        config: Config,
        node: str,
        lookup: Lookup,
        status: Callable[[], NodeStatus | None] = lambda: None,
    ) -> None:
        check_reachable(config)
        self._node = node
        self._headers: wire.Headers = {
            wire.MAX_FRAME_BYTES: config[settings.LISTENER_MAX_FRAME_BYTES],
            wire.MAX_ENVELOPE_BYTES: config[settings.LISTENER_MAX_ENVELOPE_BYTES],
        }
        self._listener = Listener(config, self)
        self.log: LogHost | None = None
        if config[settings.LOG_FOLDER]:
            from s4node.log.host import LogHost  # late: most nodes have no log

            self.log = LogHost(
                config,
                self._listener,
                node=node,
                incarnation=tokens.fresh(6),
                headers=self._headers,
                owner=self,
            )
        self._drain_frame = b""
        self._lookup = lookup
        self._status = StatusAnswers(node, status)
        self._open = False
        self._grace = config[settings.TASK_SHUTDOWN_MS]
        self._asked: dict[Connection, dict[tuple[str, bool], tuple[str, ...]]] = {}
        self._reporting = Reporting(
            reporters_of(config) if self.log is not None else (),
            self._metrics,
            interval=config[settings.METRICS_INTERVAL],
            job=config[settings.CLUSTER_NAME],
            container=node,
        )

    @property
    def address(self) -> str:
        return self._listener.address

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer until cancelled; raises ConfigError if it cannot listen on the address."""
        async with trio.open_nursery() as nursery:
            if self.log is not None:
                await nursery.start(self.log.run)
            await nursery.start(self._listener.serve)
            await nursery.start(self._reporting.run)
            self._headers[wire.ADDRESS] = self.address
            self._open = True
            task_status.started()
            while True:
                due = self._listener.send_due(trio.current_time())
                await self._listener.waker.sleep_until(due)

    def news(self) -> None:
        """Report new and ended containers to the clients that asked for their streams."""
        for connection, known in self._asked.items():
            for query in known:
                found = self._lookup(*query)
                if not isinstance(found, str):
                    self._answer(connection, query, tuple(found))
        self._listener.waker.nudge()

    async def finish(self) -> None:
        """Wait until all events that the log has admitted are on disk and acknowledged."""
        if self.log is None:
            return
        self._listener.stop_accepting()
        self._drain_frame = wire.encode_frame(wire.Drain(f"{self._node} is stopping"))
        self._listener.broadcast(self._drain_frame)
        self.log.close()
        with trio.move_on_after(self._grace) as patience:
            await self.log.wait_written()
        if patience.cancelled_caught:
            log.warning(
                "not all events reached the disk in time; their producers keep the rest",
                seconds=self._grace,
                setting="task.shutdown.ms",
            )
        with trio.move_on_after(_FAREWELL_SECONDS):
            await self._listener.shut_down()

    def _metrics(self) -> list[Sample]:
        published = {} if self.log is None else self.log.published
        found = list(samples(ListenerStatistics(dict(self._listener.counts), published)))
        process = process_statistics(os.getpid())
        return found if process is None else [*found, *samples(process)]

    def taker_of(self, stream: str) -> str:
        """Who takes a stream if an app of the node does; else, and before ``run``, empty."""
        found = self._lookup(stream, False) if self._open else ""
        return "an app of this node" if found and not isinstance(found, str) else ""

    # -- frames of the listener --------------------------------------------------------------

    def on_frame(self, frame: wire.Frame, connection: Connection) -> None:
        """Answer a hello or a question; other frames belong to containers."""
        header = frame.header
        if self._status.on_frame(header, connection):
            return
        if self.log is not None and self.log.on_frame(frame, connection):
            if self._drain_frame and isinstance(header, wire.Hello):
                connection.answer(self._drain_frame)
        elif isinstance(header, wire.Hello):
            query = header.stream, bool(header.headers.get(wire.SUBSCRIBE))
            found = self._lookup(*query)
            if isinstance(found, str):
                if self.log is not None:
                    found += f"; nor has this node's log: s4 log create {header.stream} creates it"
                why = {wire.WHY: wire.NO_STREAM}
                answer = wire.Hello(self._node, "", header.stream, error=found, headers=why)
                connection.answer(wire.encode_frame(answer))
            else:
                self._asked.setdefault(connection, {})[query] = ()
                self._answer(connection, query, tuple(found))
        elif isinstance(header, wire.Data):
            connection.bad_frame("a node's redirector takes no events; say hello first", header)
        elif isinstance(header, wire.Drain):
            connection.silent.set()
        elif isinstance(header, wire.Query):
            connection.answer(no_log(header))

    def on_drained(self) -> None:
        """Do nothing: no work waits for the frames that have arrived."""

    def on_gone(self, connection: Connection) -> bool:
        """Forget some of the connection of a peer, which has ended; return True if there is
        more."""
        self._asked.pop(connection, None)
        return self.log is not None and self.log.gone(connection)

    def _answer(
        self, connection: Connection, query: tuple[str, bool], nodes: tuple[str, ...]
    ) -> None:
        """Send a peer the containers that it does not know yet; it waits while there are none."""
        known = self._asked[connection]
        if nodes and nodes != known[query]:
            known[query] = nodes
            answer = wire.Hello(self._node, "", query[0], headers={wire.NODES: list(nodes)})
            connection.answer(wire.encode_frame(answer))
