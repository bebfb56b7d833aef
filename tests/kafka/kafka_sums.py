"""An app that puts each click on a topic, with the total of its user; for tests of Kafka."""

from __future__ import annotations

from msgspec import field

from s4node import App, Event, OutputStream, ProcessingElement, Tombstone


class Click(Event):
    user: str
    number: int = 0
    at: float = 0.0


class Total(Event):
    user: str
    number: int
    total: int
    at: float
    headers: dict[str, bytes] = field(default_factory=dict)


class Sum(ProcessingElement):
    totals: OutputStream
    total: int = 0

    def on_event(self, click: Click) -> None:
        if click.number < 0:
            self.totals.put(Tombstone(self.key))
            return
        self.total += 1
        headers = {"from": b"sums"} if click.number == 7 else {}
        self.totals.put(Total(self.key, click.number, self.total, click.at, headers))


class Sums(App):
    def on_init(self) -> None:
        pe = self.create_pe(Sum)
        pe.totals = self.create_output_stream("totals", key="user", types=Total, system="kafka")
        self.create_input_stream("clicks", pe, key="user", system="kafka")


app = Sums("sums")
