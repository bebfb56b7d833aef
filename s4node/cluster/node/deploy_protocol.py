"""The requests of a deployment to a node, and the node's answers.

Rules
- Requests and answers go through the tree (:mod:`s4node.cluster.coordination.node_requests`): a
  deployment needs no node's address, and lasts as long as its entry.
- A failed request is answered with its error, and ends neither the node nor other requests.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from s4node.errors import (
    FailedElsewhere,
    NodeUnreachable,
    S4Error,
    SessionLost,
    described,
    leaves,
    status_of,
)
from s4node.events.schema import UNREADABLE
from s4node.logger import get_logger
from s4node.savepoints.manifest import AS_IS, StateCheck

log = get_logger("s4node.cluster")

M = TypeVar("M", bound=msgspec.Struct)


class AskSettings(msgspec.Struct, tag="settings", tag_field="ask", frozen=True):
    """Asks for the settings with which a container would run of an app ``deployed`` with some.
    Answered with Settings."""

    deployed: dict[str, str]


class AskDeploy(msgspec.Struct, tag="deploy", tag_field="ask", frozen=True):
    """Asks to start the package with this ``digest``, have it check itself, and hold it.

    Answered with Prepared, and with Ready once the registry has this version and its container
    runs; or with Failed. The container is held while the request lasts. It checks saved state as
    ``check`` says.
    """

    digest: str
    partitions: int
    expected: int
    check: StateCheck = AS_IS


Ask = AskSettings | AskDeploy


class Settings(msgspec.Struct, tag="settings", tag_field="answer", frozen=True):
    settings: dict[str, str]


class Prepared(msgspec.Struct, tag="prepared", tag_field="answer", frozen=True):
    """The new version is loaded and checked."""

    inputs: list[str]
    outputs: list[str]


class Ready(msgspec.Struct, tag="ready", tag_field="answer", frozen=True):
    """The new version runs on this node."""

    address: str


class Failed(msgspec.Struct, tag="failed", tag_field="answer", frozen=True):
    """The request failed; ``trace`` is the traceback if the app's code raised, and ``status`` the
    exit status of who has asked."""

    error: str
    trace: str = ""
    status: int = 1


Answer = Settings | Prepared | Ready | Failed

_decode_ask: Callable[[bytes], Ask] = msgspec.json.Decoder(Ask).decode
decode_answer: Callable[[bytes], Answer] = msgspec.json.Decoder(Answer).decode

Say = Callable[[msgspec.Struct], Awaitable[None]]
"""Sends an answer."""

Handler = Callable[[Ask, Say], Awaitable[None]]


async def answer_with(handle: Handler, data: bytes, say: Say) -> None:
    """Answer a request, given as JSON, with what ``handle`` says, or with its error."""
    try:
        ask = _decode_ask(data)
    except UNREADABLE as error:
        await say(Failed(f"the request is unknown: {error}"))
        return
    try:
        await handle(ask, say)
    except* SessionLost:  # nobody can be answered any more
        pass
    except* Exception as group:
        await say(_failed(group))


def _failed(group: BaseExceptionGroup[Exception]) -> Failed:
    """The answer for the first exception of a failed request."""
    error = leaves(group)[0]
    if isinstance(error, S4Error):
        return Failed(str(error), status=status_of(error))
    log.error("a request failed", reason=described(error), exc_info=error)
    return Failed(f"the node could not do this: {described(error)}; see its log")


def of_kind(node: str, answer: Answer, kind: type[M]) -> M:
    """``answer`` of a node; raises NodeRefused if it is Failed, NodeUnreachable if of another
    kind."""
    if isinstance(answer, Failed):
        raise NodeRefused(node, answer)
    if not isinstance(answer, kind):
        raise NodeUnreachable(f"node {node!r} sent another answer: {answer!r}")
    return answer


class NodeRefused(FailedElsewhere):
    def __init__(self, node: str, failed: Failed) -> None:
        super().__init__(f"node {node!r}: {failed.error}", failed.trace, failed.status)
