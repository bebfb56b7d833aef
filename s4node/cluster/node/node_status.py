"""How a node is: the question at the node's own address, and the answer.

Rules
- The question is a query of the wire protocol. So it has the limits of all peers, and where peers
  have certificates it needs the role of an operator or a node.
- It names the node that is meant, because an address may lead to another one.
- The answer is a JSON text. It is made at most five times a second, whatever is asked, and leaves
  the statistics out rather than be longer than a frame may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import trio

from s4node import threads
from s4node.cluster.coordination.entries import NodeInfo
from s4node.cluster.node.container_status import ContainerStatus
from s4node.cluster.node.history import Happening
from s4node.errors import ConfigError, NodeUnreachable
from s4node.events.schema import UNREADABLE
from s4node.metrics.statistics import ContainerStatistics
from s4node.metrics.table import Sample
from s4node.net.certificates.credentials import Credentials, is_tls
from s4node.net.transport import probe
from s4node.net.wire import frame as wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from s4node.net.ingress.connection import Connection

_QUESTION = "node.status"
_NODE = "node"
_STATUS = "status"

_MOST_BYTES = 8 << 20
_FRESH_SECONDS = 0.2

_ADVERTISE = "set its s4.listener.advertise to a host, and a port, at which this machine reaches it"


class NodeStatus(msgspec.Struct, frozen=True):
    """A node's report of itself; ``statistics`` are those of its containers that have tasks, and
    ``history`` is what has happened to apps. ``own`` are the metrics of an app's author, if the
    process is that of one app."""

    name: str
    cluster: str
    pid: int
    address: str
    containers: list[ContainerStatus]
    statistics: list[ContainerStatistics]
    history: list[Happening] = []
    own: list[Sample] = []


# -- the side of a node ---------------------------------------------------------------------------


class StatusAnswers:
    """The answers of the node ``name``, whose status is what ``look`` returns."""

    def __init__(self, name: str, look: Callable[[], NodeStatus | None]) -> None:
        self._name = name
        self._look = look
        self._made = 0.0, ""

    def on_frame(self, header: wire.Header, connection: Connection) -> bool:
        """Answer a question for the status; returns False if the frame is another."""
        if not isinstance(header, wire.Query) or header.question != _QUESTION:
            return False
        name = str(header.arguments.get(_NODE, ""))
        values: dict[str, Any] = {}
        error = ""
        if name == self._name and (text := self._text()):
            values[_STATUS] = text
        else:
            error = (
                f"no node {name[:200]!r} is here; give each node an address that leads to no other "
                f"one (s4.listener.advertise)"
            )
        connection.answer(wire.encode_frame(wire.Answer(header.id, values, error)))
        return True

    def _text(self) -> str:
        now = trio.current_time()
        since, text = self._made
        if text and now < since + _FRESH_SECONDS:
            return text
        status = self._look()
        if status is None:
            return ""
        data = msgspec.json.encode(status)
        if len(data) > _MOST_BYTES:
            data = msgspec.json.encode(msgspec.structs.replace(status, statistics=[], own=[]))
        text = data.decode()
        self._made = now, text
        return text


# -- the side of who asks -------------------------------------------------------------------------


async def ask_status(node: NodeInfo, credentials: Credentials | None, seconds: float) -> NodeStatus:
    """How ``node`` says it is, within ``seconds``; raises NodeUnreachable, whose message goes on
    after the node's name."""
    at = node.address
    if is_tls(at) and credentials is None:
        raise NodeUnreachable(
            f"is at {at}, which needs a certificate; give an operator's: s4.tls.certificate, "
            f"s4.tls.key and s4.tls.authority, with --config FILE or -p"
        )
    answer: wire.Header | str = ""
    with trio.move_on_after(seconds) as patience:
        try:
            answer = await threads.run_sync(
                probe.ask,
                at,
                _QUESTION,
                {_NODE: node.name},
                seconds,
                credentials,
                abandon_on_cancel=True,
            )
        except TimeoutError:
            patience.cancel()
        except (OSError, ConfigError) as error:
            why = error.strerror if isinstance(error, OSError) else ""
            raise NodeUnreachable(
                f"cannot be reached at {at} ({why or error}); if it runs, {_ADVERTISE}"
            ) from error
    if not answer:
        raise NodeUnreachable(
            f"did not answer within {seconds:g} s; it may be stopped, or {at} does not lead to it "
            f"from here: {_ADVERTISE}"
        )
    if isinstance(answer, str):
        raise NodeUnreachable(f"cannot be asked: what listens at {at} {answer}")
    if not isinstance(answer, wire.Answer):
        raise NodeUnreachable(f"cannot be asked: what listens at {at} knows no such question")
    if answer.error:
        raise NodeUnreachable(f"does not answer at {at}: {answer.error}")
    try:
        return msgspec.json.decode(answer.values.get(_STATUS, ""), type=NodeStatus)
    except (TypeError, *UNREADABLE) as error:
        raise NodeUnreachable(
            f"sent an answer that cannot be read ({error}); use the nodes' version of s4node"
        ) from error
