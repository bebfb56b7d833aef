"""The types of events that an input stream takes, from older and newer programs."""

from __future__ import annotations

from typing import Any

import pytest
from harness import deliver, names, running
from shared_apps import Buy, Click, Ignore, NotingApp, OnePE, handling

from s4node import App, Client, Event, GenericEvent
from s4node.errors import ConnectionRefused, EventError


async def test_an_older_client_may_leave_out_fields_that_were_appended_since() -> None:
    app = NotingApp("orders", types=Order)
    async with running(app) as node:
        await deliver(node.address, [OldOrder("ann")], "orders")
        await deliver(node.address, [Order("bob", 5, "USD")], "orders")
    assert app.seen == [Order("ann", 0, "EUR"), Order("bob", 5, "USD")]


async def test_a_newer_client_may_send_fields_that_the_app_does_not_know() -> None:
    app = NotingApp("orders", types=OldOrder)
    async with running(app) as node:
        await deliver(node.address, [Order("ann", 5), Order("bob", 7)], "orders")
    assert app.seen == [OldOrder("ann"), OldOrder("bob")]


async def test_a_type_whose_fields_were_changed_is_turned_down_by_name() -> None:
    class Changed(Event):
        event_name = "Click"
        user: int

    app = OnePE(Ignore)
    async with running(app) as node, Client(node.address) as client:
        with pytest.raises(ConnectionRefused, match="Click: field user: int where this side has"):
            await client.stream("clicks", types=Changed)


async def test_a_type_that_the_stream_does_not_take_is_turned_down_by_name() -> None:
    app = OnePE(Ignore)
    async with running(app) as node, Client(node.address) as client:
        with pytest.raises(ConnectionRefused, match="takes Click, not 'Buy'"):
            await client.stream("clicks", types=Buy)


async def test_a_stream_of_several_types_keeps_them_apart_and_in_order() -> None:
    app = NotingApp("shop", types=Click | Buy | GenericEvent)
    sent: list[Any] = []
    for n in range(300):
        sent += [Click("ann", n), Buy("ann", n)][: 1 + n % 2]
        sent += [GenericEvent(user="ann", n=n)] * (n % 3)
    async with running(app) as node:
        await deliver(node.address, sent, "shop")
    assert app.seen == sent


async def test_a_stream_declares_types_that_no_handler_names() -> None:
    seen: list[Any] = []

    app = App("shop")
    listen = app.create_pe(handling(lambda _pe, event: seen.append(event), Any))
    app.create_input_stream("shop", listen, key="user", types=[Click, Buy])
    async with running(app) as node:
        await deliver(node.address, [Click("ann", 1), Buy("ann", 2)], "shop")
    assert seen == [Click("ann", 1), Buy("ann", 2)]


async def test_a_generic_event_is_frozen_once_a_client_has_sent_it() -> None:
    seen: list[Any] = []

    def rename(_pe: Any, event: GenericEvent) -> None:
        with pytest.raises(EventError, match="make a new event"):
            event.put("name", "eve")
        seen.append(event["name"])

    app = OnePE(rename, "names", key="name", types=GenericEvent)
    async with running(app) as node, Client(node.address) as client:
        stream = await client.stream("names")
        one, two, three = names("ann", "bob", "cid")
        one.put("age", 7)
        await stream.send(one)
        await stream.send_many([two])
        stream.send_nowait(three)
        for sent in (one, two, three):
            with pytest.raises(EventError, match="already sent"):
                sent.put("name", "eve")
        assert await stream.flush() == []
    assert seen == ["ann", "bob", "cid"]


# -- set-up ---------------------------------------------------------------------------------------


class Order(Event):
    user: str
    cents: int = 0
    currency: str = "EUR"


class OldOrder(Event):
    event_name = "Order"
    user: str
