"""The promises of executors: what is admitted, what is dropped, and what may leave when."""

from __future__ import annotations

import math
from copy import copy
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.config.kinds import EXECUTOR
from s4node.errors import ConfigError, S4Error
from s4node.stages.executors import (
    BUILT_IN,
    UNLIMITED,
    Block,
    Executor,
    Shed,
    StageSettings,
    Throttle,
    executor_of,
)
from s4node.stages.stage import Gauge


@pytest.mark.parametrize(
    ("executor", "depth", "size", "coming", "bytes_coming", "room"),
    [
        ("block", 0, 0, 10, 10, 10),
        ("block", 0, 0, 10, 5000, 10),  # larger than the stage: it passes alone
        ("block", 99, 0, 10, 10, 10),  # a frame more, for it cannot be cut
        ("block", 100, 0, 10, 10, 0),  # it is left to its producer
        ("block", 1, 990, 10, 10, 10),
        ("block", 1, 991, 10, 10, 0),
        ("shed", 0, 0, 10, 10, 10),
        ("shed", 0, 0, 110, 10, 100),
        ("shed", 95, 0, 10, 10, 5),
        ("shed", 100, 0, 10, 10, 0),
        ("shed", 120, 0, 10, 10, 0),
        ("shed", 1, 991, 10, 10, 0),
        ("throttle", 95, 0, 10, 10, 5),
        ("throttle", 100, 0, 10, 10, 0),
    ],
)
def test_what_a_stage_of_100_events_and_1000_bytes_admits(
    executor: str, depth: int, size: int, coming: int, bytes_coming: int, room: int
) -> None:
    gauge = loaded(executor, depth, size)
    assert gauge.executor.admits(gauge, coming, bytes_coming, 0.0) == room


@pytest.mark.parametrize(
    ("executor", "withholds", "waits_from"),
    [("block", True, 1.0), ("shed", False, math.inf), ("throttle", False, 0.5)],
)
def test_each_executor_says_whether_and_from_when_senders_wait(
    executor: str, withholds: bool, waits_from: float
) -> None:
    found = loaded(executor, 0, 0).executor
    assert (found.withholds, found.waits_from) == (withholds, waits_from)


def test_the_settings_know_each_built_in_executor_by_its_name() -> None:
    with pytest.raises(ValueError, match=f"^is neither {', '.join(BUILT_IN)} nor package"):
        EXECUTOR.parse("drop the oldest")


@pytest.mark.parametrize("executor", ["block", "shed"])
def test_only_throttling_limits_what_leaves(executor: str) -> None:
    found = loaded(executor, 0, 0).executor
    found.left(1_000_000)
    assert found.allowance(0.0) == UNLIMITED


def test_a_throttle_lets_its_rate_leave_after_a_tenth_of_a_second_s_burst() -> None:
    throttle = Throttle(StageSettings(max_rate=1000))
    assert throttle.allowance(5.0) == 100
    throttle.left(100)
    assert throttle.allowance(5.0) == 0
    assert throttle.next_at(5.0) == pytest.approx(5.01)
    assert throttle.allowance(5.01) == 10
    throttle.left(10)
    assert throttle.allowance(6.0) == 100


def test_a_batch_that_overdraws_the_bucket_is_paid_back_first() -> None:
    throttle = Throttle(StageSettings(max_rate=1000))
    assert throttle.allowance(0.0) == 100
    throttle.left(300)
    assert throttle.allowance(0.1) == 0
    assert throttle.allowance(0.19) == 0
    assert throttle.allowance(0.25) == 50


def test_a_rate_of_one_a_second_gives_one_a_second() -> None:
    throttle = Throttle(StageSettings(max_rate=1))
    left = []
    for tenth in range(50):
        allowed = throttle.allowance(tenth / 10)
        throttle.left(allowed)
        left += [tenth] * allowed
    assert left == [0, 10, 20, 30, 40]


@given(
    st.floats(1, 100_000),
    st.lists(st.tuples(st.floats(0, 0.5), st.integers(0, 5000)), max_size=60),
)
def test_no_more_leaves_than_the_rate_allows(rate: float, moves: list[tuple[float, int]]) -> None:
    throttle = Throttle(StageSettings(max_rate=rate))
    now, total = 0.0, 0
    for pause, wanted in moves:
        now += pause
        allowed = throttle.allowance(now)
        taken = min(wanted, allowed)
        throttle.left(taken)
        total += taken
        assert total <= rate * now + max(1.0, rate / 10) + 1e-6 * rate
        if not allowed:
            later = copy(throttle)
            assert later.allowance(later.next_at(now)) >= 1


@given(
    st.sampled_from(["shed", "throttle"]),
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 900), st.booleans()), max_size=50),
)
def test_a_stage_that_drops_never_holds_more_than_it_is_meant_to(
    executor: str, moves: list[tuple[int, int, bool]]
) -> None:
    gauge = loaded(executor, 0, 0)
    inside: list[tuple[int, int]] = []
    offered = dropped = 0
    for events, size, leaves in moves:
        room = gauge.executor.admits(gauge, events, size, 0.0)
        offered += events
        dropped += events - room
        gauge.dropped(events - room, gauge.executor.reason)
        if room:
            gauge.came(room, size)
            inside.append((room, size))
        if leaves and inside:
            gauge.went(*inside.pop(0))
        assert gauge.depth <= 100
        assert gauge.bytes <= 1000
    assert gauge.admitted + sum(gauge.shed.values()) == offered
    assert sum(gauge.shed.values()) == dropped


# --- an executor of one's own --------------------------------------------------------------------


class Picky(Executor):
    """Takes no more than three events at once."""

    reason = "picky"

    def admits(self, load: object, events: int, size: int, now: float) -> int:
        return min(events, 3)


class Broken(Executor):
    def __init__(self, settings: StageSettings) -> None:
        raise RuntimeError("no")


NOT_AN_EXECUTOR = 5


def test_an_own_executor_is_named_by_module_and_class() -> None:
    found = executor_of(StageSettings(executor=f"{__name__}:Picky"))
    assert type(found) is Picky
    assert found.admits(loaded("block", 0, 0), 10, 0, 0.0) == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no.such.module:Class", "cannot be imported: ModuleNotFoundError"),
        (f"{__name__}:Missing", "cannot be imported: AttributeError"),
        (f"{__name__}:NOT_AN_EXECUTOR", "is not a subclass of s4node.Executor"),
        (f"{__name__}:Broken", "cannot be created: RuntimeError: no"),
    ],
)
def test_an_executor_that_cannot_be_had_is_named(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"s4\.stream\.executor") as caught:
        executor_of(StageSettings(executor=name))
    assert message in str(caught.value)


class Misspelt(Executor):
    def admit(self, load: Any, events: int, size: int, now: float) -> int:
        return 0


def test_a_method_that_is_never_called_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"has a method 'admit', which is never called.*admits, "):
        executor_of(StageSettings(executor=f"{__name__}:Misspelt"))


class Failing(Executor):
    """Fails in whatever it is asked, but for what it has of its base."""

    def admits(self, load: object, events: int, size: int, now: float) -> int:
        raise RuntimeError("no room")

    def next_at(self, now: float) -> float:
        return "soon"  # type: ignore[return-value]


def test_an_own_executor_that_fails_is_named() -> None:
    key = "s4.stream.clicks.executor"
    failing = executor_of(StageSettings(executor=f"{__name__}:Failing", named_by=key))
    named = f"of executor '{__name__}:Failing' of {key}"
    with pytest.raises(S4Error, match=f"admits {named} raised RuntimeError: no room"):
        failing.admits(loaded("block", 0, 0), 10, 0, 0.0)
    with pytest.raises(S4Error, match=f"admits {named} raised RuntimeError: no room"):
        failing.admits_put(loaded("block", 0, 0), 10, 0, 0.0)
    with pytest.raises(S4Error, match=f"next_at {named} returned 'soon'; it has to return a time"):
        failing.next_at(0.0)
    assert failing.allowance(0.0) == UNLIMITED


def undisguised(method: Any) -> Any:
    """A decorator that does not keep the name of what it decorates."""

    def wrapper(*arguments: Any) -> Any:
        return method(*arguments)

    return wrapper


class Three:
    """An integer, but no int, as those of numpy are."""

    def __index__(self) -> int:
        return 3


class Decorated(Executor):
    """All of its methods have another name than they are called by."""

    @undisguised
    def admits(self, load: object, events: int, size: int, now: float) -> Any:
        return now or Three()

    @undisguised
    def allowance(self, now: float) -> Any:
        return math.inf if now else "some"

    @undisguised
    def left(self, events: int) -> Any:
        return events

    @undisguised
    def next_at(self, now: float) -> Any:
        return 1.5 if now else Fraction(2)


def test_what_an_own_executor_answers_is_taken_for_what_it_is_whoever_decorates_it() -> None:
    found = executor_of(StageSettings(executor=f"{__name__}:Decorated"))
    load = loaded("block", 0, 0)
    assert type(room := found.admits(load, 10, 0, 0.0)) is int
    assert (room, found.admits_put(load, 10, 0, 0.0)) == (3, 3)
    assert found.admits(load, 10, 0, math.inf) == found.allowance(1.0) == UNLIMITED
    found.left(1)
    assert (found.next_at(1.0), found.next_at(0.0)) == (1.5, 2.0)
    named = f"of executor '{__name__}:Decorated' of s4.stream.executor"
    for wrong in (1.5, math.nan, -math.inf):
        with pytest.raises(
            S4Error, match=f"admits {named} returned {wrong}; .* a number of events"
        ):
            found.admits(load, 10, 0, wrong)
    with pytest.raises(S4Error, match=f"allowance {named} returned 'some'; .* a number of events"):
        found.allowance(0.0)


def test_the_built_in_policies_have_names() -> None:
    built_in = {name: executor_of(StageSettings(executor=name)) for name in ("block", "shed")}
    assert {name: type(found) for name, found in built_in.items()} == {"block": Block, "shed": Shed}


# -- set-up ---------------------------------------------------------------------------------------


def loaded(executor: str, depth: int, size: int) -> Gauge:
    """A stage for 100 events and 1,000 bytes with so much in it."""
    gauge = Gauge(StageSettings("stream", "clicks", executor, 100, 1000, 50))
    gauge.came(depth, size)
    return gauge
