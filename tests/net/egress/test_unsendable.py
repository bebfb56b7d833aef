"""Events that an app puts and that cannot be sent: their loss is reported and counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from harness import free_port, metric, running, until
from several_containers import nodes
from shared_apps import NotingApp, OnePE
from structlog.testing import capture_logs

from s4node import App, Client, Event, GenericEvent, OutputStream, ProcessingElement, Stream
from s4node.events.keys import Partitioner
from s4node.runtime.outputs import channels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from s4node import Container


async def test_a_subscriber_is_told_that_it_missed_what_cannot_be_encoded() -> None:
    with capture_logs() as logs:
        async with (
            running(putting()) as node,
            Client(node.address) as client,
            client.subscribe("totals", types=[Total]) as totals,
        ):
            clicks = await client.stream("clicks")
            await clicks.send_many([Click("joe", n) for n in (1, LARGE // 2, 2, LARGE // 2, 3)])
            assert await clicks.flush() == []
            found = []
            async for total in totals:
                found.append(total.n)
                if len(found) == 3:
                    break
            assert found == [2, 4, 6]
            await until(lambda: totals.missed == 2)
            await clicks.send(Click("joe", LARGE // 2))  # nothing comes behind it
            await until(lambda: totals.missed == 3)
            assert unsendable(node) == {("subscriber", "totals"): 3}
            assert metric(node, "s4_unsendable_total", stream="totals") == 3
            assert metric(node, "s4_stage_shed_total") == 0
    assert told(logs) == [("totals", TOO_LARGE)]


async def test_a_subscriber_is_told_that_it_missed_what_is_too_large_for_a_frame() -> None:
    async with (
        running(putting()) as node,
        Client(node.address) as client,
        client.subscribe("totals", types=[Total]) as totals,
    ):
        clicks = await client.stream("clicks")
        with capture_logs() as logs:
            await clicks.send_many([Click("joe", 7, 300_000), Click("joe", 1)])
            assert (await anext(totals)).n == 2
            await until(lambda: totals.missed == 1)
        ((_, reason),) = told(logs)
        assert reason.startswith("a Total takes 3000")


async def test_an_app_that_consumes_a_stream_gets_the_others_and_the_loss_is_counted() -> None:
    with capture_logs() as logs:
        async with running(consuming(), {"s4.cluster.name": "east"}) as last:
            consumers = {
                "s4.stream.totals.consumers": "east",
                "s4.cluster.east.address": last.address,
            }
            async with running(putting(), consumers) as first, Client(first.address) as client:
                clicks = await client.stream("clicks")
                await clicks.send(Click("joe", LARGE // 2))  # nothing comes behind it
                await until(lambda: unsendable(first) == {("remoteSender", "totals"): 1})
                await clicks.send_many([Click("joe", n) for n in (1, LARGE // 2, 2)])
                await until(lambda: seen(last) == {"joe": [2, 4]})
                # it is counted when its turn to be answered comes, and not when it is left out
                await until(lambda: unsendable(first) == {("remoteSender", "totals"): 2})
                first.carriers["totals"].disconnect("east")
                assert unsendable(first) == {("remoteSender", "totals"): 2}
                assert metric(first, "s4_unsendable_total", stream="totals") == 2
    assert told(logs) == [("totals", TOO_LARGE)]


class Name(Event):
    friend: str


def telling() -> App:
    def tell(_pe: Any, click: Click) -> None:
        out.put(Name("joe"))
        out.put(GenericEvent(friend="joe"))
        out.put(GenericEvent(user=click.user))

    app = OnePE(tell, types=Click)
    out = app.create_output_stream("names")
    return app


def taking() -> App:
    return NotingApp("names", types=GenericEvent)


async def test_events_without_a_type_or_key_at_the_consumer_are_counted() -> None:
    with capture_logs() as logs:
        async with running(taking(), {"s4.cluster.name": "east"}, partitions=2) as last:
            consumers = {
                "s4.stream.names.consumers": "east",
                "s4.cluster.east.address": last.address,
            }
            async with running(telling(), consumers) as first, Client(first.address) as client:
                clicks = await client.stream("clicks")
                await clicks.send_many([Click("joe"), Click("ann")])
                await until(lambda: unsendable(first) == {("remoteSender", "names"): 4})
                assert metric(first, "s4_unsendable_total", stream="names") == 4
    ((stream, reason),) = told(logs)
    assert stream == "names"
    assert "takes GenericEvent, not 'Name'" in reason or "KeyError: 'user'" in reason


async def test_events_put_before_their_consumer_came_are_counted_if_it_cannot_take_them() -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    consumers = {"s4.stream.names.consumers": "east", "s4.cluster.east.address": address}
    east = {"s4.cluster.name": "east", "s4.listener.address": address}
    async with running(telling(), consumers) as first, Client(first.address) as client:
        clicks = await client.stream("clicks")
        await clicks.send_many([Click("joe"), Click("ann")])
        assert await clicks.flush() == []
        async with running(taking(), east, partitions=2) as last:
            await until(lambda: unsendable(first) == {("remoteSender", "names"): 4})
            await until(lambda: last.statistics().inputs["names"].admitted == 2)


async def test_between_members_the_loss_is_counted_by_who_has_put_the_event(
    tmp_path: Path,
) -> None:
    users = [f"user-{n}" for n in range(20)]
    with capture_logs() as logs:
        async with nodes(tmp_path, both, 2) as (all_nodes, _):
            members = list(all_nodes.containers.values())
            async with Client(members[0].address) as client:
                clicks = await client.stream("clicks")
                await clicks.send_many(
                    [Click(user, n) for user in users for n in (1, LARGE // 2, 2)]
                )
                assert await clicks.flush() == []

            def came() -> int:
                return sum(map(len, seen(*members).values()))

            def lost() -> int:
                return unsendable(*members)["sender", "totals"]

            await until(lambda: came() + lost() >= 3 * len(users))
            assert came() + lost() == 3 * len(users)
            assert 0 < lost() < len(users)  # what stays in a process is not encoded
            assert unsendable(*members).keys() == {("sender", "totals")}
    assert set(told(logs)) == {("totals", TOO_LARGE)}


async def test_durable_tasks_commit_without_an_unsendable_event_and_count_it(
    tmp_path: Path,
) -> None:
    users = [f"user-{n}" for n in range(20)]
    settings = {
        "s4.stream.clicks.grade": "durable",
        "s4.state.folder": str(tmp_path),
        "s4.stream.totals.consumers": "east",
    }
    with capture_logs() as logs:
        async with (
            running(consuming(), {"s4.cluster.name": "east"}) as last,
            running(putting(), {**settings, "s4.cluster.east.address": last.address}) as first,
            Client(first.address) as client,
        ):
            clicks = await client.stream("clicks")
            await clicks.send_many([Click(user, n) for user in users for n in (1, LARGE // 2, 2)])
            assert await clicks.flush() == []
            await until(lambda: seen(last) == {user: [2, 4] for user in users})
            assert unsendable(first) == {("remoteSender", "totals"): 20}
            first.carriers["totals"].disconnect("east")
            first.parts.outputs.consumer("totals", "east")
            assert list(first.parts.outputs.outboxes()) == []  # the ways of its tasks are gone
            assert unsendable(first) == {("remoteSender", "totals"): 20}
    assert told(logs) == [("totals", TOO_LARGE)]


async def test_events_of_a_rolled_back_task_count_once_when_they_are_put_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "MAX_FRAME_EVENTS", 4)  # made long before a commit
    settings = {
        "s4.stream.clicks.grade": "durable",
        "s4.stream.clicks.onError": "skip",
        "s4.state.folder": str(tmp_path),
        "s4.stream.totals.consumers": "east",
        "s4.step.maxEvents": "1",
    }
    async with (
        running(consuming(), {"s4.cluster.name": "east"}) as last,
        running(putting(), {**settings, "s4.cluster.east.address": last.address}) as first,
        Client(first.address) as client,
    ):
        clicks = await client.stream("clicks")
        numbers = [1, LARGE // 2, *range(2, 20)]
        await clicks.send_many(
            [
                *(Click("joe", n) for n in numbers),
                Click("joe", LARGE // 2, bad=True),
                Click("joe", 20),
            ]
        )
        assert len(await clicks.flush()) == 1
        await until(lambda: seen(last) == {"joe": [2 * n for n in range(1, 21)]})
        assert unsendable(first) == {("remoteSender", "totals"): 1}


class Hop(Event):
    user: str
    n: int


class Pass(ProcessingElement):
    clicks: int = 0
    hops: Stream

    def on_event(self, click: Click) -> None:
        self.clicks += 1
        self.hops.put(Hop(click.user, click.n * 2))
        if click.bad:
            raise ValueError(click.n)


class Arrive(ProcessingElement):
    hops: int = 0

    def on_event(self, hop: Hop) -> None:
        self.hops += 1


def hopping() -> App:
    app = OnePE(Pass)
    app.pe.hops = app.create_stream("hops", app.create_pe(Arrive), key="user")
    return app


async def test_own_events_of_a_task_arrive_or_are_counted_when_it_is_rolled_back(
    tmp_path: Path,
) -> None:
    settings = {
        "s4.stream.clicks.grade": "durable",
        "s4.stream.clicks.onError": "skip",
        "s4.state.folder": str(tmp_path),
    }
    with capture_logs() as logs:
        async with (
            running(hopping(), settings, partitions=1) as node,
            Client(node.address) as client,
        ):
            clicks = await client.stream("clicks")
            await clicks.send_many(
                [  # behind a failure each event has a commit of its own
                    Click("joe", 1, bad=True),
                    Click("joe", LARGE // 2),
                    Click("joe", 2, bad=True),
                    *(Click("joe", n) for n in range(3, 10)),
                ]
            )
            assert len(await clicks.flush()) == 2
            task = node.tasks[0]
            passed, arrived = (task.instances[pe]["joe"] for pe in ("Pass", "Arrive"))
            await until(lambda: arrived.hops == 7)  # type: ignore[attr-defined]
            assert passed.clicks == 8  # type: ignore[attr-defined]
            assert unsendable(node) == {("sender", "hops"): 1}
    ((stream, reason),) = told(logs)
    assert (stream, reason[:25]) == ("hops", "a Hop cannot be encoded: ")


async def test_a_value_that_is_not_of_its_field_s_type_cannot_be_sent() -> None:
    app = OnePE(lambda pe, click: pe.totals.put(Total(click.user, float(click.n))), types=Click)  # type: ignore[arg-type]
    app.pe.totals = app.create_output_stream("totals", types=Total)
    with capture_logs() as logs:
        async with (
            running(app) as node,
            Client(node.address) as client,
            client.subscribe("totals", types=[Total]) as totals,
        ):
            clicks = await client.stream("clicks")
            await clicks.send(Click("joe", 1))
            assert await clicks.flush() == []
            await until(lambda: totals.missed == 1)
            assert unsendable(node) == {("subscriber", "totals"): 1}
    assert told(logs) == [("totals", MISFIT)]


async def test_between_durable_tasks_a_value_that_is_not_of_its_field_s_type_cannot_be_sent(
    tmp_path: Path,
) -> None:
    settings = {"s4.stream.clicks.grade": "durable", "s4.state.folder": str(tmp_path)}

    partition_of = Partitioner(2).partition_of
    friend = next(k for k in ("ann", "bob", "eve") if partition_of(k) != partition_of("joe"))

    def put(pe: Any, click: Click) -> None:
        n = float(click.n) if click.bad else click.n
        pe.totals.put(Total(click.user, n, friend=friend))  # type: ignore[arg-type]

    app = OnePE(put, types=Click)
    app.pe.totals = app.create_stream("totals", app.create_pe(Keep), key="friend")
    with capture_logs() as logs:
        async with running(app, settings, partitions=2) as node, Client(node.address) as client:
            clicks = await client.stream("clicks")
            await clicks.send_many(
                [Click("joe", n, bad=bad) for n in range(20) for bad in (False, True)]
            )
            assert await clicks.flush() == []
            await until(lambda: sum(map(len, seen(node).values())) == 20)
            assert unsendable(node) == {("sender", "totals"): 20}
    assert told(logs) == [("totals", MISFIT)]


# -- set-up ---------------------------------------------------------------------------------------


MISFIT = "it cannot be sent: Total does not decode: Expected `int`, got `float` - at `$.n`"

LARGE = 2**64
"""An integer that msgpack does not have."""

TOO_LARGE = "a Total cannot be encoded: can't serialize ints < -2**63 or > 2**64 - 1"


class Click(Event):
    user: str
    n: int = 0
    size: int = 0
    bad: bool = False


class Total(Event):
    user: str
    n: int
    text: str = ""
    friend: str = ""


class Double(ProcessingElement):
    totals: OutputStream | Stream

    def on_event(self, click: Click) -> None:
        self.totals.put(Total(click.user, click.n * 2, "x" * click.size, click.user[::-1]))
        if click.bad:
            raise ValueError(click.n)


class Keep(ProcessingElement):
    seen: list[int] = []  # noqa: RUF012 - copied for each instance

    def on_event(self, total: Total) -> None:
        self.seen.append(total.n)


def putting() -> App:
    app = OnePE(Double)
    app.pe.totals = app.create_output_stream("totals", types=Total)
    return app


def consuming() -> App:
    return OnePE(Keep, "totals")


def both() -> App:
    app = OnePE(Double)
    app.pe.totals = app.create_stream("totals", app.create_pe(Keep), key="friend")
    return app


def seen(*containers: Container) -> dict[str, list[int]]:
    """The stored counts, by key."""
    return {
        instance.key: instance.seen  # type: ignore[attr-defined]
        for container in containers
        for task in container.tasks.values()
        for instance in task.instances["Keep"].values()
    }


def unsendable(*containers: Container) -> Counter[tuple[str, str]]:
    """How many events could not be sent, by stage and stream."""
    found: Counter[tuple[str, str]] = Counter()
    for container in containers:
        for stage, streams in container.statistics().unsendable.items():
            found.update({(stage, stream): count for stream, count in streams.items()})
    return found


def told(logs: Sequence[Any]) -> list[tuple[str, str]]:
    """The streams and reasons of the warnings."""
    return [(line["stream"], line["reason"]) for line in logs if "cannot be sent" in line["event"]]
