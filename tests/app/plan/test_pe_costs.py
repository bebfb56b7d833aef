"""The times, calls, errors and hot keys of PEs, from a sample."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from s4node import App, Event, OutputStream, ProcessingElement, tumbling
from s4node.app.plan.dispatch import Plan, Probe
from s4node.app.plan.pe_costs import PROBED, PeCosts
from s4node.metrics.statistics import TaskStatistics
from s4node.testing import AppTest, spend


class Click(Event):
    user: str
    seconds: float = 0.0


class Slow(ProcessingElement):
    def on_event(self, click: Click) -> None:
        spend(click.seconds)


class Quick(ProcessingElement):
    clicks: OutputStream

    def on_event(self, click: Click) -> None:
        self.clicks.put(click)


class Clicks(App):
    def on_init(self) -> None:
        quick = self.create_pe(Quick)
        quick.clicks = self.create_output_stream("seen", types=Click)
        self.create_input_stream("clicks", self.create_pe(Slow), quick, key="user")


def statistics_of(test: AppTest) -> TaskStatistics:
    (task,) = test._runtime.container.statistics().tasks
    return task


@pytest.mark.parametrize("slice_", [1, 40, 5 * PROBED])
def test_the_time_of_each_handler_is_estimated_and_each_event_handled_once(slice_: int) -> None:
    with AppTest(Clicks) as test:
        for _ in range(33):
            test.send("clicks", *(Click("joe", 1e-5) for _ in range(slice_)))
            test.advance(1)
        found = statistics_of(test)
        events = 33 * slice_
        assert len(test.output("seen")) == events
        calls = found.pe_calls["Slow"]["on_event"]
        assert 0.5 * events <= calls <= events
        assert found.pe_seconds["Slow"]["on_event"] == pytest.approx(calls * 1e-5, rel=0.1)
        assert found.pe_calls["Quick"]["on_event"] == calls
        assert found.pe_seconds["Quick"]["on_event"] == pytest.approx(0, abs=1e-6)


def test_the_hottest_keys_have_their_parts_of_the_events() -> None:
    with AppTest(Clicks) as test:
        users = ["ann"] * 500 + ["joe"] * 300 + [f"user-{n}" for n in range(200)]
        Random(1).shuffle(users)
        for user in users:
            test.send("clicks", Click(user))
        hot = statistics_of(test).hot_keys["Slow"]
    assert list(hot)[:2] == ["ann", "joe"]
    assert [hot["ann"], hot["joe"]] == pytest.approx([0.5, 0.3], abs=0.05)


def test_keys_that_are_many_and_rare_take_no_memory_and_are_not_reported() -> None:
    costs, plan = PeCosts(lambda: 0.0), plan_of()
    for number in range(20_000):
        probe = sampled(costs, plan, 100)
        if probe is not None:
            probe.keys.update({f"{number} {n}": 1 for n in range(70)} | {"hot": 30})
            costs.measured("clicks", plan, probe, 100)
    assert max(map(len, costs._keys.values())) <= 1000
    assert list(costs.statistics()["hot_keys"]["Slow"]) == ["hot"]


def sampled(costs: PeCosts, plan: Plan, events: int) -> Probe | None:
    """The probe of the next slice, if it is measured."""
    plan.slices += 1
    plan.unmeasured += events
    return costs.sample(plan, events) if plan.slices >= plan.next_probe else None


def plan_of() -> Plan:
    probe = Probe(lambda _: None, {"Slow": [0.0, 0]}, {})
    return Plan(lambda _: None, False, "", lambda _: probe)


@pytest.mark.parametrize(("events", "most"), [(1, 130), (1000, 22)])
def test_few_slices_are_measured(events: int, most: int) -> None:
    costs, plan = PeCosts(lambda: 0.0), plan_of()
    found: Sequence[int] = [
        number for number in range(1000) if sampled(costs, plan, events) is not None
    ]
    assert len(found) <= most
    assert found[:4] == [0, 1, 3, 7]


class Ending(ProcessingElement):
    def on_event(self, click: Click) -> None:
        pass

    def on_window(self) -> None:
        spend(2.0)


def ending() -> App:
    app = App("ending")
    pe = app.create_pe(Ending)
    pe.set_window(tumbling(60))
    app.create_input_stream("clicks", pe, key="user", time="seconds")
    return app


def test_windows_are_measured_in_each_round() -> None:
    with AppTest(ending()) as test:
        test.send("clicks", *(Click(user, 60.0) for user in ("ann", "joe")))
        test.advance_watermark("clicks", 300.0)
        found = statistics_of(test)
    assert found.pe_calls["Ending"]["on_window"] == 2
    assert found.pe_seconds["Ending"]["on_window"] == pytest.approx(4.0, rel=0.01)


class Failing(ProcessingElement):
    def on_event(self, click: Click) -> None:
        if click.user == "joe":
            raise ValueError(click.user)


def failing() -> App:
    app = App("failing")
    app.create_input_stream("clicks", app.create_pe(Failing), key="user")
    return app


SKIPPED = {"s4.stream.clicks.onError": "skip", "s4.stream.clicks.grade": "durable"}


def test_errors_are_counted_by_handler() -> None:
    with AppTest(failing(), settings=SKIPPED) as test:
        test.send("clicks", Click("ann"), Click("joe"), Click("kim"))
        assert statistics_of(test).pe_errors == {"Failing": {"on_event": 1}}
