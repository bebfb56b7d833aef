"""The promises of the message choosers: every batch once, turns, priorities, batches, bootstrap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.config.config import Config
from s4node.errors import ConfigError, S4Error
from s4node.events.event import EventBatch
from s4node.offsets.system import Bounds
from s4node.offsets.system import SystemStreamPartition as Ssp
from s4node.runtime.task.chooser import (
    Batching,
    Bootstrap,
    Bootstrapping,
    ChooserSettings,
    MessageChooser,
    RoundRobin,
    TieredPriority,
)

HERE = __name__


# --- round robin ---------------------------------------------------------------------------------


def test_a_chooser_without_batches_chooses_nothing() -> None:
    assert Waiting(RoundRobin()).choose() is None


@given(st.integers(1, 5), st.integers(1, 40))
def test_inputs_that_always_have_a_batch_take_turns(inputs: int, rounds: int) -> None:
    letters = "abcde"[:inputs]
    turns = order(RoundRobin(), letters * rounds, rounds)
    assert turns == "".join(letters[turn % inputs] for turn in range(rounds))


@given(st.lists(st.integers(0, 3) | st.none(), max_size=80))
def test_nothing_starves_in_round_robin(moves: list[int | None]) -> None:
    """A batch is chosen after at most one batch of each other input."""
    chooser = Waiting(RoundRobin[int]())
    since: dict[int, Counter[int]] = {}
    for move in moves:
        if move is not None and move not in since:
            since[move] = Counter()
            chooser.update(move, batch(str(move)))
        elif move is None and (chosen := chooser.choose()) is not None:
            del since[chosen[0]]
            for passed in since.values():
                passed[chosen[0]] += 1
                assert passed[chosen[0]] == 1


# --- priorities ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("priorities", "offers", "chosen"),
    [
        ({}, "aabb", "abab"),
        ({"b": 1}, "aabb", "bbaa"),
        ({"a": 1, "b": 2}, "aabbcc", "bbaacc"),
        ({"a": 5, "b": 5}, "aabbcc", "ababcc"),
        ({"c": 0}, "abc", "abc"),
        ({"unknown": 9}, "ab", "ab"),
    ],
)
def test_higher_priorities_go_first_and_equal_ones_take_turns(
    priorities: dict[str, int], offers: str, chosen: str
) -> None:
    assert order(TieredPriority(priorities, RoundRobin), offers) == chosen


# --- batching ------------------------------------------------------------------------------------


def test_the_size_counts_events_and_a_batch_may_be_cut() -> None:
    batching = Batching(RoundRobin[str](), 100)
    chooser = Waiting(batching)
    gone = []
    for name in "ab":
        chooser.update(name, batch(name, 60))
    for _ in range(7):
        chosen = chooser.choose()
        assert chosen is not None
        source, at_hand = chosen
        step = min(batching.left, at_hand.size - at_hand.at)
        at_hand.at += step
        gone.append((source, step))
        chooser.update(source, at_hand if at_hand.at < at_hand.size else batch(source, 60))
    turns = [("a", 60), ("a", 40), ("b", 60), ("b", 40)]
    assert gone == [*turns, ("a", 20), ("a", 60), ("a", 20)]
    assert chooser.choose()[0] == "b"  # type: ignore[index]
    assert batching.resets == 3


def test_an_input_that_has_nothing_loses_its_turn() -> None:
    chooser = Waiting(Batching(RoundRobin[str](), 10))
    chooser.update("a", batch("a"))
    chooser.update("b", batch("b"))
    assert chooser.choose()[0] == "a"  # type: ignore[index]
    assert chooser.choose()[0] == "b"  # type: ignore[index]
    chooser.update("a", batch("a"))
    chooser.update("b", batch("b"))
    assert chooser.choose()[0] == "b"  # type: ignore[index]


def test_a_held_input_loses_its_turn_but_no_batch() -> None:
    chooser = Waiting(Batching(RoundRobin[str](), 10))
    chooser.update("a", batch("a"))
    chooser.update("b", batch("b"))
    assert chooser.choose()[0] == "a"  # type: ignore[index]
    chooser.update("a", batch("a"))
    assert chooser.choose(lambda source: source == "b")[0] == "b"  # type: ignore[index]
    assert chooser.choose()[0] == "a"  # type: ignore[index]
    assert chooser.choose() is None


# --- bootstrap -----------------------------------------------------------------------------------

RULES, MORE, CLICKS = Ssp("log", "rules", 0), Ssp("log", "rules", 1), Ssp("log", "clicks", 0)


def lagging(until: Mapping[Ssp, int]) -> Bootstrap:
    """A bootstrap that has to read these partitions from 0 to these offsets."""
    bootstrap = Bootstrap(until)
    for ssp, upcoming in until.items():
        assert not bootstrap.begins(ssp, 0, Bounds(0, upcoming))
    return bootstrap


def choices(chooser: Waiting) -> str:
    chosen = chooser.choose()
    return "nothing" if chosen is None else str(chosen[0])


def test_an_input_never_bootstraps_again() -> None:
    bootstrap = lagging({RULES: 2})
    assert bootstrap.reached(RULES, 5)
    assert not bootstrap.reached(RULES, 1)
    assert bootstrap.streams == frozenset()


def test_every_partition_of_a_bootstrap_stream_must_be_caught_up() -> None:
    bootstrap = lagging({RULES: 1, MORE: 1})
    chooser = Waiting(Bootstrapping(RoundRobin[Ssp](), bootstrap, {"rules": 1}))
    assert bootstrap.lag == {"log.rules": 2}
    chooser.update(CLICKS, batch("clicks"))
    assert not bootstrap.reached(RULES, 1)
    assert bootstrap.lag == {"log.rules": 1}
    chooser.update(RULES, batch("rules"))
    assert choices(chooser) == "log.rules[0]"  # what comes after the bootstrap goes on meanwhile
    assert choices(chooser) == "nothing"
    assert bootstrap.reached(MORE, 1)
    assert choices(chooser) == "log.clicks[0]"


@pytest.mark.parametrize(
    ("position", "bounds", "lags"),
    [
        (0, Bounds(0, 0), False),
        (0, Bounds(0, 3), True),
        (2, Bounds(0, 3), True),
        (3, Bounds(0, 3), False),
        (0, Bounds(3, 3), False),
        (0, Bounds(2, 3), True),
        (9, Bounds(0, 3), False),
    ],
)
def test_a_bootstrap_input_without_events_is_caught_up(
    position: int, bounds: Bounds, lags: bool
) -> None:
    bootstrap = Bootstrap([RULES])
    assert bootstrap.begins(RULES, position, bounds) != lags
    assert bootstrap.streams == (frozenset({"rules"}) if lags else frozenset())
    assert bootstrap.reached(RULES, bounds.upcoming) == lags


def test_other_inputs_wait_until_the_end_of_the_bootstrap_is_known() -> None:
    bootstrap = Bootstrap([RULES, MORE])
    chooser = Waiting(Bootstrapping(RoundRobin[Ssp](), bootstrap, {"rules": 1}))
    chooser.update(CLICKS, batch("clicks"))
    assert not bootstrap.reached(RULES, 10)
    assert not bootstrap.begins(RULES, 7, Bounds(0, 7))
    assert choices(chooser) == "nothing"
    assert bootstrap.begins(MORE, 0, Bounds(0, 0))
    assert choices(chooser) == "log.clicks[0]"


def test_events_that_come_later_are_not_waited_for() -> None:
    bootstrap = lagging({RULES: 2})
    assert not bootstrap.begins(RULES, 0, Bounds(0, 9))  # only what was there at the start counts
    assert bootstrap.reached(RULES, 2)


# --- as configured -------------------------------------------------------------------------------


def made(values: dict[str, str], bootstrap: Bootstrap | None = None) -> MessageChooser[Any]:
    chooser = ChooserSettings.from_config(Config.from_values(values)).make({}, bootstrap)
    return RoundRobin() if chooser is None else chooser


def test_without_settings_inputs_take_turns_and_need_no_chooser() -> None:
    assert ChooserSettings.from_config(Config.from_values({})).make({}) is None
    assert type(made({"streams.a.samza.priority": "0"})) is RoundRobin


def test_layers_are_composed_where_they_are_configured() -> None:
    values = {
        "streams.rules.samza.bootstrap": "true",
        "streams.b.samza.priority": "3",
        "task.consumer.batch.size": "2",
    }
    bootstrap = lagging({RULES: 1})
    chooser = Waiting(made(values, bootstrap))
    assert type(chooser.chooser) is Bootstrapping
    for name in "abc":
        chooser.update(name, batch(name))
    assert chooser.choose() is None
    chooser.update(RULES, batch("rules"))
    assert chooser.choose()[0] == RULES  # type: ignore[index]
    assert bootstrap.reached(RULES, 1)
    assert [choices(chooser) for _ in range(4)] == ["b", "a", "c", "nothing"]
    assert type(made(values)) is Batching
    assert type(made({"streams.b.samza.priority": "3"})) is TieredPriority


def test_a_bootstrap_input_goes_first_unless_it_has_a_priority() -> None:
    values = {"streams.r.samza.bootstrap": "true", "streams.a.samza.priority": "7"}
    assert order(made(values), "aarr") == "rraa"
    assert order(made(values | {"streams.r.samza.priority": "1"}), "aarr") == "aarr"
    assert order(made(values | {"streams.r.samza.bootstrap": "false"}), "rraa") == "aarr"


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("streams.none.samza.priority", "the app has no such input; its inputs: a.b, live"),
        ("streams.none.samza.bootstrap", "the app has no such input; its inputs: a.b, live"),
        ("streams.live.samza.bootstrap", "a live stream cannot be replayed"),
    ],
)
def test_chooser_settings_of_streams_that_are_not_inputs_are_refused(key: str, what: str) -> None:
    value = "true" if key.endswith("bootstrap") else "1"
    found = ChooserSettings.from_config(
        Config.from_values({key: value, "streams.a.b.samza.priority": "1"})
    )
    with pytest.raises(ConfigError) as caught:
        found.check(["a.b"], ["live"])
    assert str(caught.value).startswith(f"{key}: {what}")


# --- one's own -----------------------------------------------------------------------------------


class LastFirst:
    """Who waits last goes first; the parameter may make it break the contract."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self.wrong = parameters.get("wrong", "")

    def choose(self, waiting: Mapping[Any, EventBatch], may: Callable[[Any], bool]) -> Any:
        if self.wrong == "choose":
            raise ValueError("not me")
        if self.wrong == "put":
            waiting["b"] = waiting["a"]  # type: ignore[index]
        if self.wrong == "source":
            return ["other"]
        for source in reversed(waiting):  # type: ignore[call-overload]
            if self.wrong == "may" or may(source):
                return source
        return None


class NoChooser:
    def __init__(self, parameters: Mapping[str, str]) -> None:
        pass


def own(wrong: str = "") -> MessageChooser[Any]:
    settings = ChooserSettings.from_config(
        Config.from_values({"task.chooser.class": f"{HERE}:LastFirst"})
    )
    chooser = settings.make({"wrong": wrong})
    assert chooser is not None
    return chooser


def test_a_custom_chooser_chooses_within_each_tier() -> None:
    assert order(own(), "abc") == "cba"
    values = {"task.chooser.class": f"{HERE}:LastFirst", "streams.b.samza.priority": "1"}
    assert order(made(values), "abc") == "bca"


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ("source", "gave ['other'], which has no batch waiting; give one of the inputs that wait"),
        ("may", "gave a, which may not go now; ask may(source) before choosing it"),
        ("choose", "raised ValueError: not me; the task cannot know what goes next"),
        ("put", "raised TypeError: 'mappingproxy' object does not support item assignment"),
    ],
)
def test_a_custom_chooser_that_breaks_the_contract_is_reported(wrong: str, what: str) -> None:
    chooser = Waiting(own(wrong))
    chooser.update("a", batch("a"))
    with pytest.raises(S4Error) as caught:
        chooser.choose(lambda _: wrong != "may")
    blamed = f"choose of chooser '{HERE}:LastFirst' of task.chooser.class"
    assert str(caught.value).startswith(f"{blamed} {what}")


def test_a_class_that_is_not_a_chooser_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no choose; it needs choose"):
        made({"task.chooser.class": f"{HERE}:NoChooser"})


# --- whatever happens ----------------------------------------------------------------------------

STREAMS = ["a", "b", "c", "boot", "first"]

configurations = st.fixed_dictionaries(
    {},
    optional={
        "task.consumer.batch.size": st.sampled_from(["1", "3", "10"]),
        "task.chooser.class": st.just(f"{HERE}:LastFirst"),
        **{f"streams.{name}.samza.priority": st.sampled_from("0129") for name in STREAMS},
        "streams.boot.samza.bootstrap": st.just("true"),
        "streams.first.samza.bootstrap": st.just("true"),
    },
)
sources = st.builds(Ssp, st.just("log"), st.sampled_from(STREAMS), st.integers(0, 1))
moves = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), sources, st.integers(1, 5)),
        st.tuples(
            st.just("choose"), st.frozensets(st.sampled_from(STREAMS), max_size=2), st.none()
        ),
        st.tuples(st.just("put aside"), st.none(), st.none()),
        st.tuples(st.just("done"), st.none(), st.none()),
    ),
    max_size=60,
)


@given(configurations, st.dictionaries(sources, st.integers(1, 8)), moves)
def test_any_composition_keeps_the_contract(
    values: dict[str, str], until: dict[Ssp, int], moves: list[tuple[str, Any, Any]]
) -> None:
    """One batch at a time is under way; it may be put aside after its first event, and is done."""
    settings = ChooserSettings.from_config(Config.from_values(values))
    bootstrap = lagging({s: n for s, n in until.items() if s.stream in settings.bootstrap})
    chooser = Waiting(settings.make({}, bootstrap) or RoundRobin())
    positions: Counter[Ssp] = Counter()
    offered: dict[Ssp, EventBatch] = {}
    under_way: tuple[Ssp, EventBatch] | None = None
    drained = False

    def may_run(source: Ssp, held: frozenset[str]) -> bool:
        return source.stream not in held

    def rank(source: Ssp) -> int:
        return settings.priorities.get(source.stream, 0)

    def allowed(source: Ssp) -> bool:
        lagging = [s for s in until if s.stream in settings.bootstrap and positions[s] < until[s]]
        if not lagging:
            return True
        return source.stream in settings.bootstrap and rank(source) >= max(map(rank, lagging))

    def choose(held: frozenset[str]) -> None:
        nonlocal under_way
        could = {s for s in offered if allowed(s) and s.stream not in held}
        chosen = chooser.choose(lambda s: may_run(s, held))
        if chosen is None:
            assert could == set()
            return
        source, got = chosen
        assert offered.pop(source) is got
        assert source in could
        if not settings.batch_size:  # strict priority, but for the rest of a batch size
            assert rank(source) == max(map(rank, could))
        under_way = chosen

    def done() -> None:
        nonlocal under_way
        assert under_way is not None
        source, got = under_way
        positions[source] += got.size
        bootstrap.reached(source, positions[source])
        under_way = None

    for what, one, events in moves:
        assert chooser.batches == offered
        busy = under_way[0] if under_way else None
        if what == "offer" and one not in offered and one != busy:
            offered[one] = batch(one.stream, events)
            chooser.update(one, offered[one])
        elif what == "choose" and under_way is None:
            choose(one)
        elif what == "put aside" and under_way is not None:
            source, got = under_way
            got.at = min(got.at + 1, got.size - 1)
            offered[source] = got
            chooser.update(source, got)
            under_way = None
        elif what == "done" and under_way is not None:
            done()
    if under_way is not None:
        done()
    while not drained:
        before = len(offered)
        choose(frozenset())
        drained = under_way is None
        if not drained:
            assert len(offered) == before - 1
            done()
    assert not [source for source in offered if allowed(source)]


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), min_size=1, max_size=40),
)
def test_a_turn_of_a_batch_size_ends_with_the_first_batch_that_fills_it(
    size: int, batches: list[tuple[str, int]]
) -> None:
    chooser = Waiting(Batching(RoundRobin[str](), size))
    queues: dict[str, list[int]] = {}
    for name, events in batches:
        queues.setdefault(name, []).append(events)
    for name, queue in queues.items():
        chooser.update(name, batch(name, queue.pop(0)))
    turns: list[tuple[str, int, bool]] = []  # who, how many events, whether it had more
    while (chosen := chooser.choose()) is not None:
        name, got = chosen
        more = bool(queues[name])
        if more:
            chooser.update(name, batch(name, queues[name].pop(0)))
        if turns and turns[-1][0] == name and turns[-1][1] < size and turns[-1][2]:
            turns[-1] = name, turns[-1][1] + got.size, more
        else:
            turns.append((name, got.size, more))
    for before, after in pairwise(turns):
        assert before[1] >= size or not before[2], (before, after)
    assert sum(events for _, events, _ in turns) == sum(events for _, events in batches)


# -- set-up ---------------------------------------------------------------------------------------


def batch(stream: str, events: int = 1) -> EventBatch:
    return EventBatch(stream, 0, ["event"] * events)


class Waiting:
    """The inputs of a task that wait, and the chooser that is asked about them."""

    def __init__(self, chooser: MessageChooser[Any]) -> None:
        self.chooser = chooser
        self.batches: dict[Any, EventBatch] = {}

    def update(self, source: Any, batch: EventBatch) -> None:
        self.batches[source] = batch

    def choose(self, may: Callable[[Any], bool] = lambda _: True) -> tuple[Any, EventBatch] | None:
        source = self.chooser.choose(self.batches, may)
        return None if source is None else (source, self.batches.pop(source))


def order(chooser: MessageChooser[Any], offers: str, count: int | None = None) -> str:
    """The names of what is chosen, where each input (a letter) offers again as soon as it can.

    ``offers`` are the letters of the inputs in the order in which they offer, each a batch of one
    event; how often a letter stands there is how many it has.
    """
    left = Counter(offers)
    waiting = Waiting(chooser)
    for name in dict.fromkeys(offers):
        waiting.update(name, batch(name))
        left[name] -= 1
    chosen = ""
    while (count is None or len(chosen) < count) and (one := waiting.choose()) is not None:
        name = one[0]
        assert one[1].stream == name
        one[1].at = 1
        chosen += name
        if left[name]:
            left[name] -= 1
            waiting.update(name, batch(name))
    return chosen
