"""A program may change the lists and dicts of what it has sent: nodes get what they were then."""

from __future__ import annotations

from typing import Any

import pytest
from harness import in_thread, running
from shared_apps import NotingApp

from s4node import Client, Event, GenericEvent, SyncClient


class Cart(Event):
    user: str
    items: list[int]


def typed(items: list[int]) -> Any:
    return Cart("joe", items)


def generic(items: list[int]) -> Any:
    return GenericEvent(user="joe", items=items)


SENT = [[0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize(("make", "types"), [(typed, Cart), (generic, GenericEvent)])
async def test_a_program_may_go_on_to_change_what_it_has_sent(make: Any, types: Any) -> None:
    app = NotingApp("carts", types=types, note=lambda _, event: list(event.items))
    async with running(app) as node, Client(node.address) as client:
        stream = await client.stream("carts")
        items: list[int] = []
        for n in range(3):
            items.append(n)
            await stream.send(make(items))
        for n in range(3, 5):
            items.append(n)
            await stream.send_many([make(items)])
        items.append(5)
        stream.send_nowait(make(items))
        items.append(6)
        assert await stream.flush() == []
    assert app.seen == [*SENT, [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize(("make", "types"), [(typed, Cart), (generic, GenericEvent)])
async def test_so_may_a_program_with_a_sync_client(make: Any, types: Any) -> None:
    app = NotingApp("carts", types=types, note=lambda _, event: list(event.items))

    def work(address: str) -> None:
        with SyncClient(address) as client:
            stream = client.stream("carts")
            items: list[int] = []
            for n in range(3):
                items.append(n)
                stream.send(make(items))
            items.append(3)
            stream.send_many([make(items)])
            items.append(4)
            assert stream.flush() == []

    async with running(app) as node:
        await in_thread(lambda: work(node.address))
    assert app.seen == [*SENT, [0, 1, 2, 3]]
