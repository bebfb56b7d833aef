"""An app that keeps the numbers of each user's clicks, which it reads from a topic."""

from __future__ import annotations

from s4node import App, Event, ProcessingElement


class Click(Event):
    user: str
    number: int = 0


class Count(ProcessingElement):
    numbers: list[int] = []  # noqa: RUF012

    def on_event(self, click: Click) -> None:
        self.numbers.append(click.number)


class Clicks(App):
    def on_init(self) -> None:
        self.create_input_stream("clicks", self.create_pe(Count), key="user", system="kafka")


app = Clicks("clicks")
