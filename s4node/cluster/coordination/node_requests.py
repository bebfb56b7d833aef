"""Requests to the nodes of a cluster, and their answers, as entries of the tree.

Rules
- A request is an entry of a command's session, for the nodes that it names. An answer is an entry
  of a node's session, which has all of its answers so far. So nobody needs a port, and everyone who
  may write to the tree may ask.
- What a request has begun ends with the request, which ends with the command.
- The answers end with the nodes that gave them. A node that ends while it is asked is reported.
- Entries are compressed, and answers that are too large for an entry are replaced by an error.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import Generic, TypeVar

import msgspec
import trio

from s4node import tokens
from s4node.cluster.coordination.follow import follow
from s4node.cluster.coordination.registry import Registry
from s4node.cluster.tree.contract import MAX_DATA_BYTES
from s4node.errors import EntryExists, NodeUnreachable, NoEntry, SessionLost
from s4node.events.schema import UNREADABLE
from s4node.logger import get_logger

log = get_logger("s4node.cluster")

A = TypeVar("A")

_ID_BYTES = 8
_WITHDRAWING_SECONDS = 1.0


class _Request(msgspec.Struct, frozen=True):
    nodes: list[str]
    ask: msgspec.Raw


# -- the side of a command ------------------------------------------------------------------------


class Requested(Generic[A]):
    """A request that was sent, with the answers of kind ``A``; see :func:`requesting`."""

    def __init__(
        self,
        registry: Registry,
        cluster: str,
        id_: str,
        nodes: Collection[str],
        decode: Callable[[bytes], A],
    ) -> None:
        self.nodes = tuple(nodes)
        self._registry = registry
        self._cluster = cluster
        self._id = id_
        self._decode = decode

    async def wait_answer(self, node: str, number: int) -> A:
        """The answer of a node with this number, from 0; raises NodeUnreachable."""
        session = self._registry.session
        path = Registry.path_of_cluster(self._cluster)
        while True:
            seen = await session.change(path)
            entry = await session.get(Registry.path_of_answers(self._cluster, self._id, node))
            if entry is not None:
                answers = _decoded(node, entry.data)
                if len(answers) > number:
                    try:
                        return self._decode(answers[number])
                    except UNREADABLE as error:
                        raise _unreadable(node, error) from error
            elif node not in await self._registry.nodes(self._cluster):
                raise NodeUnreachable(f"node {node!r} ended while it was asked; see its log")
            await session.wait_change(path, seen)


@asynccontextmanager
async def requesting(
    registry: Registry,
    cluster: str,
    nodes: Collection[str],
    ask: msgspec.Struct,
    decode: Callable[[bytes], A],
) -> AsyncIterator[Requested[A]]:
    """Ask nodes of a cluster, for as long as the block lasts."""
    id_ = tokens.fresh(_ID_BYTES)
    request = _Request(list(nodes), msgspec.Raw(msgspec.json.encode(ask)))
    path = Registry.path_of_request(cluster, id_)
    await registry.session.create(path, _encoded(request), ephemeral=True)
    try:
        yield Requested(registry, cluster, id_, nodes, decode)
    finally:
        with (
            trio.move_on_after(_WITHDRAWING_SECONDS, shield=True),
            contextlib.suppress(SessionLost, NoEntry),
        ):
            await registry.session.delete(path)
            await registry.entries.delete_tree(Registry.path_of_answers(cluster, id_))


# -- the side of a node ---------------------------------------------------------------------------


class Conversation:
    """The answers of a node to one request."""

    def __init__(self, registry: Registry, path: str) -> None:
        self._session = registry.session
        self._path = path
        self._answers: list[msgspec.Raw] = []

    async def say(self, answer: msgspec.Struct) -> None:
        """Add an answer; raises ValueError if an entry cannot hold it."""
        answers = [*self._answers, msgspec.Raw(msgspec.json.encode(answer))]
        data = _encoded(answers)
        if len(data) > MAX_DATA_BYTES:
            raise ValueError(f"an answer of {len(data)} bytes")
        with contextlib.suppress(EntryExists):
            await self._session.create(self._path, ephemeral=True)
        await self._session.set(self._path, data)
        self._answers = answers


Handler = Callable[[bytes, Conversation], Awaitable[None]]
"""Answers a request, given as JSON. It is cancelled when the request ends."""


async def answer_requests(registry: Registry, cluster: str, node: str, handle: Handler) -> None:
    """Answer the requests to a node until cancelled; raises SessionLost."""
    open_: dict[str, trio.CancelScope] = {}

    async def answer(id_: str, request: _Request) -> None:
        with open_[id_]:
            path = Registry.path_of_answers(cluster, id_, node)
            await handle(bytes(request.ask), Conversation(registry, path))

    async def step(nursery: trio.Nursery) -> None:
        path = Registry.path_of_request(cluster)
        seen = await registry.session.change(path)
        asked = set(await registry.session.children(path))
        for id_ in open_.keys() - asked:
            open_.pop(id_).cancel()
        for id_ in asked - open_.keys():
            entry = await registry.session.get(f"{path}/{id_}")
            if entry is None:
                continue
            open_[id_] = trio.CancelScope()
            try:
                request = msgspec.json.decode(zlib.decompress(entry.data), type=_Request)
            except (zlib.error, *UNREADABLE):  # of another version
                log.warning("a request cannot be read", node=node, request=id_)
                continue
            if node in request.nodes:
                nursery.start_soon(answer, id_, request)
        await registry.session.wait_change(path, seen)

    async with trio.open_nursery() as nursery:
        await follow(
            partial(step, nursery),
            lambda why: log.warning("cannot read requests", node=node, reason=why),
        )


def _encoded(value: object) -> bytes:
    return zlib.compress(msgspec.json.encode(value))


def _decoded(node: str, data: bytes) -> list[msgspec.Raw]:
    if not data:
        return []
    try:
        return msgspec.json.decode(zlib.decompress(data), type=list[msgspec.Raw])
    except (zlib.error, *UNREADABLE) as error:
        raise _unreadable(node, error) from error


def _unreadable(node: str, error: Exception) -> NodeUnreachable:
    return NodeUnreachable(
        f"node {node!r} sent an answer that cannot be read ({error}); use the nodes' version of "
        f"s4node"
    )
