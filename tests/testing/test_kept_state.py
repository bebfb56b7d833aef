"""The kit where tasks keep state: durable streams, errors, crashes, what is chosen first."""

from __future__ import annotations

import pytest
from shared_apps import Click, handling

from s4node import App, GenericEvent, ProcessingElement, Stream
from s4node.errors import ConfigError, ProcessingError
from s4node.testing import AppTest

DURABLE = {"s4.stream.clicks.grade": "durable"}


@pytest.mark.parametrize("partitions", [1, 4])
def test_what_was_committed_is_there_after_a_crash_and_what_was_not_is_sent_again(
    partitions: int,
) -> None:
    with AppTest(Counting, partitions=partitions, settings=DURABLE) as test:
        test.send("clicks", *(Click(user) for user in USERS))
        test.advance(seconds=5)
        test.send("clicks", *(Click(user) for user in USERS))
        before = test.app
        test.crash()
        test.advance(seconds=5)
        assert not before.closed
        assert test.app is not before
        assert {user: test.state(Count, user).clicks for user in USERS} == dict.fromkeys(USERS, 2)
        assert test.state(Sum, 0).seen == 2 * len(USERS)


def test_a_crash_takes_what_is_not_committed_and_the_next_life_does_it_anew() -> None:
    with AppTest(Counting, settings=DURABLE) as test:
        test.send("clicks", Click("joe"))
        test.advance(seconds=5)
        test.send("clicks", Click("joe"))
        assert len(test.output("users")) == 2
        test.crash()
        test.advance(seconds=5)
        assert test.output("users") == [Click("joe")] * 3
        assert test.state(Count, "joe").clicks == 2


def test_without_a_durable_stream_a_crash_takes_all() -> None:
    with AppTest(Counting) as test:
        test.send("clicks", Click("joe"))
        test.advance(seconds=5)
        test.crash()
        test.send("clicks", Click("joe"))
        assert test.state(Count, "joe").clicks == 1


@pytest.mark.parametrize("partitions", [1, 3])
def test_an_event_at_which_a_handler_raises_is_left_out_where_the_setting_says_so(
    partitions: int,
) -> None:
    settings = {**DURABLE, "s4.stream.clicks.onError": "skip"}
    with AppTest(Counting, partitions=partitions, settings=settings) as test:
        test.send("clicks", Click("joe"), Click("ann", -1), Click("joe"), Click("ann"))
        test.advance(seconds=5)
        assert test.state(Count, "joe").clicks == 2
        assert test.state(Count, "ann").clicks == 1
        assert [(one.event, "-1 clicks" in one.reason) for one in test.refused] == [
            (Click("ann", -1), True)
        ]


def test_an_event_at_which_a_handler_raises_becomes_a_dead_letter() -> None:
    settings = {
        **DURABLE,
        "s4.stream.clicks.onError": "dead-letter",
        "task.dead.letter.stream": "left-out",
    }
    with AppTest(Counting, settings=settings) as test:
        test.fail(Count, "ann", OSError("no luck"))
        test.fail(Count, "ann", OSError("no luck"))
        test.send("clicks", Click("joe"), Click("ann", 7), Click("joe"))
        test.advance(seconds=5)
        assert test.state(Count, "joe").clicks == 2
        [letter] = test.output("left-out")
        assert "no luck" in letter.reason


def test_a_durable_stream_stops_the_app_at_an_error_unless_the_setting_says_otherwise() -> None:
    with AppTest(Counting, settings=DURABLE) as test, pytest.raises(ProcessingError, match="-1"):
        test.send("clicks", Click("joe", -1))


def test_what_is_saved_can_be_looked_at_though_it_is_not_in_memory() -> None:
    with AppTest(Counting, settings=DURABLE) as test:
        test.send("clicks", Click("joe"), Click("joe"))
        test.advance(seconds=5)
        test.crash()
        assert test.keys(Count) == []
        assert test.state(Count, "joe").clicks == 2
        with pytest.raises(LookupError, match="no instance of key 'ann'"):
            test.state(Count, "ann")
        test.send("clicks", Click("joe"))
        assert test.state(Count, "joe").clicks == 3


def two_inputs(seen: list[str]) -> type[App]:
    """Two inputs of a log to one PE, which notes what comes."""

    class Two(App):
        def on_init(self) -> None:
            note = self.create_pe(handling(lambda _, click: seen.append(click.user), Click))
            for name in ("one", "two"):
                self.create_input_stream(name, note, key="user", system="log", types=Click)

    return Two


@pytest.mark.parametrize(
    "settings",
    [
        {"streams.two.samza.priority": "2"},
        {"streams.two.samza.bootstrap": "true", "streams.two.samza.offset.default": "oldest"},
    ],
    ids=["priority", "bootstrap"],
)
def test_what_is_read_again_after_a_crash_is_chosen_as_the_settings_say(
    settings: dict[str, str],
) -> None:
    seen: list[str] = []
    with AppTest(two_inputs(seen), settings=settings) as test:
        for _ in range(3):
            test.send("one", Click("one"))
            test.send("two", Click("two"))
        assert seen == ["one", "two"] * 3
        seen.clear()
        test.crash()
        assert seen == ["two"] * 3 + ["one"] * 3


def test_an_unknown_setting_is_reported_when_the_test_is_made() -> None:
    with pytest.raises(ConfigError, match="unknown key"):
        AppTest(Counting, settings={"s4.nothing": "1"})


# -- set-up ---------------------------------------------------------------------------------------


USERS = [f"user-{n}" for n in range(20)]


class Count(ProcessingElement):
    users: Stream
    clicks: int = 0

    def on_event(self, click: Click) -> None:
        if click.n < 0:
            raise ValueError(f"{click.n} clicks")
        self.clicks += 1
        self.users.put(click)


class Sum(ProcessingElement):
    seen: int = 0

    def on_event(self, click: Click) -> None:
        self.seen += 1


class Counting(App):
    """clicks -> Count of each user -> users -> Sum of each n."""

    def on_init(self) -> None:
        self.closed = False
        count, total = self.create_pe(Count), self.create_pe(Sum)
        count.users = self.create_stream("users", total, key="n")
        self.create_input_stream("clicks", count, key="user")
        self.create_output_stream("left-out", types=GenericEvent)

    def on_close(self) -> None:
        self.closed = True
