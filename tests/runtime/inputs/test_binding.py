"""The promises of the grades of an app's streams."""

from __future__ import annotations

import pytest
from shared_apps import Click

from s4node import App, ProcessingElement
from s4node.config.config import Config
from s4node.runtime.inputs.binding import grades_of


class Count(ProcessingElement):
    def on_event(self, event: Click) -> None:
        pass


def an_app(*, reads_log: bool = False) -> App:
    app = App("shop")
    pe = app.create_pe(Count)
    app.create_stream("inner", pe, key="user")
    app.create_stream("unkeyed", pe)
    app.create_stream("to-all", pe, broadcast=True)
    app.create_input_stream("clicks", pe, key="user", types=Click)
    app.create_input_stream("visits", pe, key="user", types=Click)
    if reads_log:
        app.create_input_stream("orders", pe, key="user", types=Click, system="log")
    return app


@pytest.mark.parametrize(
    ("reads_log", "grades"),
    [
        (False, {"clicks": "durable", "visits": "fast"}),
        (True, {"clicks": "durable", "visits": "fast"}),
        (True, {"clicks": "fast", "visits": "fast"}),
    ],
)
def test_the_streams_of_an_app_with_commits_are_durable_but_for_inputs_that_are_set_to_fast(
    reads_log: bool, grades: dict[str, str]
) -> None:
    values = {f"s4.stream.{name}.grade": grade for name, grade in grades.items()}
    found = grades_of(an_app(reads_log=reads_log), Config.from_values(values))
    assert {name for name, grade in found.items() if grade == "fast"} == {
        name for name, grade in grades.items() if grade == "fast"
    }


class Reminder(Count):
    def on_timer(self, _name: str) -> None:
        pass


@pytest.mark.parametrize(("cls", "grade"), [(Count, "fast"), (Reminder, "durable")])
def test_an_app_with_timers_is_durable_for_they_are_saved(
    cls: type[ProcessingElement], grade: str
) -> None:
    app = App("shop")
    app.create_input_stream("clicks", app.create_pe(cls), key="user", types=Click)
    assert grades_of(app, Config()) == {"clicks": grade}
