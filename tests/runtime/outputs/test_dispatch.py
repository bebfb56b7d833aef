"""Which partition gets an event, and in which order, on running containers with real sockets."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
import trio
from harness import data_frame, raw_peer, run_s4, running, until
from shared_apps import Click, Forward, Ignore, NotingApp, OnePE, handling
from structlog.testing import capture_logs

from s4node import AdapterApp, App, Client, Event, GenericEvent
from s4node.errors import ConfigError, ConnectionRefused, EventError, ProcessingError
from s4node.events.keys import Partitioner, crc32m, s4

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from s4node import Container
    from s4node.events.keys import KeySpec


class ByUser:
    """A KeyFinder; with a name both ends know that they use the same one."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def get(self, event: Click) -> str:
        return event.user


def by_length(key: Any) -> int:
    """A hasher of our own."""
    return len(key) * 1009 + crc32m(key)


# -- input streams own their keys -----------------------------------------------------------------


async def test_a_client_that_knows_the_event_sends_it_straight_to_its_partition() -> None:
    seen = Seen()
    async with running(clicks_app(seen), partitions=4) as node:
        await send_all(node, CLICKS)
        assert node.ports["clicks"].deserializer.redispatched == 0
    in_order(seen)
    seen.at_home(4)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("user", "n"),
        ("user", ("n", "user")),
        ("user", lambda click: click.n),
        ("user", lambda click: click.user),
        (lambda click: click.user, None),
        (lambda click: click.user, "user"),
        (lambda click: click.user, "n"),
        (ByUser(), None),
        (ByUser("by-user"), None),
        (ByUser("by-user"), "user"),
        (ByUser("user"), "user"),
    ],
    ids=[
        "another attribute",
        "more attributes",
        "another function",
        "the same as a function",
        "no key for a function",
        "an attribute for a function",
        "another attribute for a function",
        "no key for a KeyFinder",
        "no key for a named KeyFinder",
        "an attribute for a KeyFinder",
        "an attribute named as a KeyFinder",
    ],
)
async def test_events_of_a_client_with_another_key_find_their_partition_in_order(
    ours: KeySpec, theirs: KeySpec | None
) -> None:
    seen = Seen()
    async with running(clicks_app(seen, ours), partitions=4) as node:
        await send_all(node, CLICKS, key=theirs)
        redispatched = node.ports["clicks"].deserializer.redispatched
        assert redispatched == 0 if ours == "user" else 0 < redispatched < 4000
    in_order(seen)
    seen.at_home(4)


@pytest.mark.parametrize(
    ("ours", "theirs", "told"),
    [
        (ByUser("by-user"), ByUser("of-adapter"), ("KeyFinder 'of-adapter'", "crc32m:@by-user")),
        (ByUser(), ByUser(), ("ByUser, which has no name", "crc32m:?")),
        (ByUser(), None, ("none", "crc32m:?")),
        (ByUser("by-user"), ByUser("by-user"), None),
        ("user", ByUser("of-adapter"), None),
    ],
)
async def test_an_adapter_whose_key_finder_is_not_used_warns_once_of_both(
    ours: KeySpec, theirs: KeySpec | None, told: tuple[str, str] | None
) -> None:
    seen = Seen()
    with capture_logs() as logs:
        async with (
            running(clicks_app(seen, ours), partitions=4) as consumer,
            running(Source(CLICKS, key=theirs, many=False), to(consumer)),
        ):
            await until(lambda: seen.total == 4000)
            assert (consumer.ports["clicks"].deserializer.redispatched == 0) == (told is None)
    in_order(seen)
    seen.at_home(4)
    warned = [line for line in logs if "whose node sends each of them on" in line["event"]]
    found = [(line["stream"], line["key"], line["input_routing"]) for line in warned]
    assert found == ([] if told is None else [("clicks", *told)])
    assert all("the same name" in line["fix"] for line in warned)


async def test_json_lines_find_their_partition_in_order(tmp_path: Path) -> None:
    seen = Seen()
    lines = "".join(f'{{"user": "{click.user}", "n": {click.n}}}\n' for click in CLICKS)
    async with running(clicks_app(seen), partitions=4) as node:
        done = await run_s4(
            "send", "clicks", "--to", node.address, cwd=tmp_path, stdin=lines.encode()
        )
    assert done.returncode == 0, done.stderr
    in_order(seen)
    seen.at_home(4)


async def test_a_program_sends_json_as_it_is_and_a_bad_object_is_refused_alone() -> None:
    seen = Seen()
    texts = [b'{"user": "%b", "n": %d}' % (click.user.encode(), click.n) for click in CLICKS]
    async with running(clicks_app(seen), partitions=4) as node, Client(node.address) as client:
        clicks = await client.stream("clicks")
        clicks.read_as("Click")
        await clicks.send_many([*texts[:500], b'{"user": 5}', *texts[500:]])
        [refusal] = await clicks.flush()
    assert refusal.number == 500
    assert refusal.reason.endswith('Expected `str`, got `int` - at `$.user`, in {"user": 5}')
    in_order(seen)
    seen.at_home(4)


@pytest.mark.parametrize("routing", ["", "crc32m:n", "s4:user", "crc32m:?", "nonsense"])
async def test_frames_of_a_peer_that_routes_by_nothing_we_know_are_dispatched_again(
    routing: str,
) -> None:
    seen = Seen()
    async with running(clicks_app(seen), partitions=4) as node, raw_peer(node.address) as peer:
        await peer.open("clicks", "raw", Click)
        for first in range(0, 2000, 100):
            events = CLICKS[first : first + 100]
            frame = data_frame("clicks", "raw", first, events, partition=3, routing=routing)
            await peer.send_frames(frame)
        await until(lambda: seen.total == 2000)
        assert node.ports["clicks"].deserializer.redispatched > 1000
    in_order(seen, CLICKS[:2000])
    seen.at_home(4)


@pytest.mark.parametrize(
    ("key", "key_of"),
    [
        (("user", "n"), lambda click: (click.user, click.n)),
        ("n", lambda click: click.n),
        ("page", lambda click: click.page),
        (lambda click: ["list", click.n], lambda click: ("list", click.n)),
        (lambda click: [click.user], lambda click: click.user),
    ],
    ids=["composite", "int", "bytes", "list", "list of one"],
)
async def test_keys_may_be_text_numbers_bytes_and_tuples_of_those(
    key: KeySpec, key_of: Callable[[Visit], Any]
) -> None:
    seen = Seen()
    sent = [Visit(USERS[n % 40], n % 100, bytes([n % 50])) for n in range(1000)]
    async with running(clicks_app(seen, key, types=Visit), partitions=4) as node:
        await send_all(node, sent)
    expected = defaultdict(list)
    for click in sent:
        expected[key_of(click)].append(click.n)
    assert seen.numbers == expected
    seen.at_home(4)


@pytest.mark.parametrize(
    ("name", "hasher"), [("s4", s4), (f"{__name__}:by_length", by_length)], ids=["s4", "own"]
)
async def test_the_clusters_hasher_decides_the_partition_and_clients_follow(
    name: str, hasher: Callable[[Any], int]
) -> None:
    seen = Seen()
    async with running(clicks_app(seen), {"s4.hasher": name}, partitions=4) as node:
        await send_all(node, CLICKS)
        assert node.ports["clicks"].deserializer.redispatched == 0
    in_order(seen)
    seen.at_home(4, hasher)


async def test_an_event_without_the_key_is_refused_by_the_client_and_the_others_go_on() -> None:
    app = NotingApp(types=GenericEvent)
    async with running(app, partitions=4) as node, Client(node.address) as client:
        clicks = await client.stream("clicks")
        await clicks.send_many(
            [GenericEvent(user="ann", n=1), GenericEvent(n=2), GenericEvent(user="ann", n=3)]
        )
        (refused,) = await clicks.flush()
        assert clicks.counts["unsent"] == 1
    assert app.numbers == [1, 3]
    assert (refused.number, refused.stream) == (-1, "clicks")
    assert "the event has no attribute 'user'" in refused.reason


@pytest.mark.parametrize("partitions", [1, 4])
async def test_a_key_finder_that_raises_or_finds_nothing_refuses_that_event_alone(
    partitions: int,
) -> None:
    def find(click: Click) -> Any:
        if click.n % 10 == 3:
            raise LookupError("no such user")
        return None if click.n % 10 == 7 else click.user

    app = NotingApp(key=find)
    async with running(app, partitions=partitions) as node, Client(node.address) as client:
        clicks = await client.stream("clicks")
        await clicks.send_many([Click("ann", n) for n in range(1000)])
        refused = await clicks.flush()
        assert clicks.counts["admitted"] == 800
        assert node.statistics().inputs["clicks"].refused == 200
    assert app.numbers == [n for n in range(1000) if n % 10 not in (3, 7)]
    assert sorted(r.number for r in refused) == [n for n in range(1000) if n % 10 in (3, 7)]
    reasons = {r.number % 10: r.reason for r in refused}
    assert "the KeyFinder raised LookupError: no such user" in reasons[3]
    assert "the KeyFinder returned nothing" in reasons[7]
    assert "(event Click(user='ann'" in reasons[3]


# -- internal streams -----------------------------------------------------------------------------


async def test_an_internal_keyed_stream_brings_each_key_to_its_partition_in_order() -> None:
    seen = Seen()
    numbers = itertools.count()

    def split(_pe: Any, line: Line) -> None:
        for word in line.text.split():
            words.put(Word(word, next(numbers)))

    app = OnePE(split, key=lambda line: "one", types=Line)
    words = app.create_stream("words", app.create_pe(handling(seen.note, Word)), key="word")
    async with running(app, partitions=4) as node:
        await send_all(node, [Line(" ".join(USERS)) for _ in range(100)])
        await until(lambda: seen.total == 4000)
    assert {word: len(of_it) for word, of_it in seen.numbers.items()} == dict.fromkeys(USERS, 100)
    assert all(of_it == sorted(of_it) for of_it in seen.numbers.values())
    seen.at_home(4)


async def test_a_chain_of_small_queues_between_partitions_neither_blocks_nor_loses() -> None:
    seen = Seen()

    def widen(pe: Any, click: Click) -> None:
        for copy in range(5):
            pe.out.put(Click(f"{click.user}/{copy}", click.n))

    app = App("chain")
    one, two, three = (app.create_pe(handling(widen)) for _ in range(3))
    app.create_input_stream("clicks", one, key="user")
    one.out = app.create_stream("two", two, key="user")
    two.out = app.create_stream("three", three, key="user")
    three.out = app.create_stream("end", app.create_pe(handling(seen.note)), key="user")
    async with running(app, {"s4.stream.workQueueSize": "7"}, partitions=3) as node:
        await send_all(node, CLICKS[:80])
        await until(lambda: seen.total == 80 * 125)
    assert all(numbers == sorted(numbers) for numbers in seen.numbers.values())
    seen.at_home(3)


async def test_an_unkeyed_internal_stream_stays_in_its_partition() -> None:
    seen: list[tuple[int, int]] = []

    def pass_on(pe: Any, click: Click) -> None:
        local.put(Click(click.user, pe.partition))

    def note(pe: Any, click: Click) -> None:
        seen.append((click.n, pe.partition))

    app = OnePE(pass_on)
    board = app.create_pe(handling(note))
    board.set_singleton()
    local = app.create_stream("local", board)
    async with running(app, partitions=4) as node:
        await send_all(node, CLICKS[:400])
        await until(lambda: len(seen) == 400)
    assert {put for put, _ in seen} == {0, 1, 2, 3}
    assert all(put == taken for put, taken in seen)


async def test_a_broadcast_reaches_every_partition_once_and_in_order() -> None:
    seen: dict[int, list[int]] = defaultdict(list)
    app = board_app(seen, "others")
    everywhere = app.create_stream("all", app.pe, broadcast=True)
    pass_on = app.create_pe(handling(lambda _, click: everywhere.put(click)))
    app.create_input_stream("clicks", pass_on, key="user")
    async with running(app, partitions=4) as node:
        await send_all(node, [Click("ann", n) for n in range(500)])
        await until(lambda: sum(map(len, seen.values())) == 2000)
    assert seen == {partition: list(range(500)) for partition in range(4)}


@pytest.mark.parametrize("partitions", [1, 3])
async def test_a_key_finder_that_fails_on_an_internal_stream_fails_the_app_by_name(
    partitions: int,
) -> None:
    app = OnePE(Forward, name="inner")
    app.pe.out = app.create_stream("inner", app.create_pe(Ignore), key=lambda click: None)

    async def run() -> None:
        async with running(app, partitions=partitions) as node, Client(node.address) as client:
            await (await client.stream("clicks")).send(Click("ann", 5))
            await trio.sleep_forever()

    with pytest.raises(ProcessingError, match="KeyFinder of 'inner' of app 'inner'") as caught:
        await run()
    assert "the KeyFinder returned nothing" in str(caught.value)


# -- output streams -------------------------------------------------------------------------------


def to(*consumers: Container, stream: str = "clicks") -> dict[str, str]:
    """Settings that send an output stream to these containers."""
    clusters = {f"c{number}": node.address for number, node in enumerate(consumers)}
    return {
        f"s4.stream.{stream}.consumers": ", ".join(clusters),
        **{f"s4.cluster.{name}.address": address for name, address in clusters.items()},
    }


class Source(AdapterApp):
    """Sends given events, one by one or all together."""

    output_stream = "clicks"

    def __init__(self, events: list[Any], *, key: KeySpec | None = None, many: bool = True) -> None:
        super().__init__()
        self.events = events
        self.many = many
        self.remote_stream_key_finder = key

    def on_start(self) -> None:
        self.start_soon(self.feed)

    async def feed(self) -> None:
        if self.many:
            await self.remote_stream.send_many(self.events)
        else:
            for event in self.events:
                await self.remote_stream.send(event)


def board_app(counts: dict[int, list[int]], name: str = "clicks") -> OnePE:
    """An app with one PE a partition, which notes the numbers that it gets."""
    app = OnePE(lambda pe, click: counts[pe.partition].append(click.n), name, key=None, types=Click)
    app.pe.set_singleton()
    return app


@pytest.mark.parametrize("many", [False, True], ids=["one by one", "together"])
async def test_an_output_stream_without_a_key_goes_round_robin(many: bool) -> None:
    counts: dict[int, list[int]] = defaultdict(list)
    events = [Click("ann", n) for n in range(2000)]
    async with (
        running(board_app(counts), partitions=4) as consumer,
        running(Source(events, many=many), to(consumer)),
    ):
        await until(lambda: sum(map(len, counts.values())) == 2000)
    shares = [counts[partition] for partition in range(4)]
    assert [len(share) for share in shares] == [500] * 4
    assert [sorted(share) for share in shares] == shares
    assert {n for share in shares for n in share} == set(range(2000))


async def test_an_adapters_key_finder_chooses_the_partition_and_keeps_the_order() -> None:
    seen = Seen()
    async with (
        running(clicks_app(seen), partitions=4) as consumer,
        running(Source(CLICKS, key="user"), to(consumer)),
    ):
        await until(lambda: seen.total == 4000)
        assert consumer.ports["clicks"].deserializer.redispatched == 0
    in_order(seen)
    seen.at_home(4)


@pytest.mark.parametrize("key", ["n", lambda click: click.n, None])
async def test_an_adapter_with_another_key_or_none_keeps_the_order_of_each_key(
    key: KeySpec | None,
) -> None:
    seen = Seen()
    async with (
        running(clicks_app(seen), partitions=4) as consumer,
        running(Source(CLICKS, key=key), to(consumer)),
    ):
        await until(lambda: seen.total == 4000)
    in_order(seen)
    seen.at_home(4)


async def test_every_consuming_cluster_gets_every_event_once() -> None:
    first: dict[int, list[int]] = defaultdict(list)
    second: dict[int, list[int]] = defaultdict(list)
    events = [Click("ann", n) for n in range(1000)]
    async with (
        running(board_app(first)) as east,
        running(board_app(second)) as west,
        running(Source(events), to(east, west)) as source,
    ):
        await until(lambda: len(first[0]) == len(second[0]) == 1000)
        assert source.statistics().sent == {"clicks": 1000}
    assert first == second == {0: list(range(1000))}


async def test_several_adapters_of_one_name_may_feed_one_stream() -> None:
    counts: dict[int, list[int]] = defaultdict(list)
    halves = [[Click("ann", n) for n in range(start, 1000, 2)] for start in (0, 1)]
    async with running(board_app(counts)) as consumer:
        settings = to(consumer)
        async with running(Source(halves[0]), settings), running(Source(halves[1]), settings):
            await until(lambda: len(counts[0]) == 1000)
    assert sorted(counts[0]) == list(range(1000))


async def test_a_pe_puts_on_an_output_stream_and_the_next_cluster_goes_on_with_it() -> None:
    seen = Seen()

    app = OnePE(lambda _, click: out.put(Click(click.user.upper(), click.n)))
    out = app.create_output_stream("upper", key="user", types=Click)
    upper = clicks_app(seen, name="upper")
    async with (
        running(upper, partitions=2) as consumer,
        running(app, to(consumer, stream="upper"), partitions=4) as node,
    ):
        await send_all(node, CLICKS)
        await until(lambda: seen.total == 4000)
    in_order(seen, [Click(click.user.upper(), click.n) for click in CLICKS])
    seen.at_home(2)


async def test_an_output_stream_that_the_consumer_does_not_have_stops_the_app_by_name() -> None:
    counts: dict[int, list[int]] = defaultdict(list)

    async def run() -> None:
        async with (
            running(board_app(counts, "visits")) as consumer,
            running(Source([Click("ann")]), to(consumer)),
        ):
            await trio.sleep_forever()

    with pytest.raises(EventError, match="no input stream 'clicks'; its input streams: visits"):
        await run()


async def test_two_consumers_at_one_address_are_a_mistake_of_the_configuration() -> None:
    settings = {
        "s4.stream.clicks.consumers": "east, west",
        "s4.cluster.east.address": "tcp://127.0.0.1:12000",
        "s4.cluster.west.address": "tcp://127.0.0.1:12000",
    }

    async def run() -> None:
        async with running(Source([]), settings):
            raise AssertionError("it must not run")

    with pytest.raises(ConfigError, match="'clicks' has two consumers at tcp:"):
        await run()


async def test_an_output_stream_without_a_consumer_warns_and_drops() -> None:
    async with running(Source([Click("ann", n) for n in range(100)])) as source:
        await until(lambda: source.statistics().sent == {"clicks": 100})
        assert not source.parts.outputs.unacknowledged()


async def test_a_client_with_an_invalid_key_is_refused_at_once() -> None:
    async with running(clicks_app(Seen()), partitions=2) as node, Client(node.address) as client:
        with pytest.raises(ConnectionRefused, match="'two words' is not an attribute's name"):
            await client.stream("clicks", key="two words")


# -- set-up ---------------------------------------------------------------------------------------


class Visit(Event):
    user: str
    n: int
    page: bytes


class Line(Event):
    text: str


class Word(Event):
    word: str
    n: int


USERS = [f"user{n}" for n in range(40)]

CLICKS = [Click(USERS[n * 7 % 40], n) for n in range(4000)]


class Seen:
    """The numbers that an app has seen by key, and the partitions where each key was."""

    def __init__(self) -> None:
        self.numbers: dict[Any, list[int]] = defaultdict(list)
        self.partitions: dict[Any, set[int]] = defaultdict(set)

    def note(self, pe: Any, event: Any) -> None:
        self.numbers[pe.key].append(event.n)
        self.partitions[pe.key].add(pe.partition)

    @property
    def total(self) -> int:
        return sum(map(len, self.numbers.values()))

    def at_home(self, partitions: int, hasher: Callable[[Any], int] = crc32m) -> None:
        """Every key was in its own partition only."""
        home = Partitioner(partitions, hasher).partition_of
        assert self.partitions == {key: {home(key)} for key in self.partitions}
        assert len(set().union(*self.partitions.values())) > 1


def clicks_app(
    seen: Seen, key: KeySpec | None = "user", name: str = "clicks", types: type[Event] = Click
) -> App:
    return OnePE(seen.note, name, key=key, types=types)


async def send_all(node: Container, events: Iterable[Any], **options: Any) -> None:
    async with Client(node.address) as client:
        clicks = await client.stream("clicks", **options)
        await clicks.send_many(events)
        assert await clicks.flush() == []


def in_order(seen: Seen, clicks: list[Click] = CLICKS) -> None:
    """Everything was seen once, and each key's events in the order sent."""
    expected = defaultdict(list)
    for click in clicks:
        expected[click.user].append(click.n)
    assert seen.numbers == expected
