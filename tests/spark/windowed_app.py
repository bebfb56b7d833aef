"""An app with windows and timers of all kinds: for tests of histories."""

from __future__ import annotations

from s4node import (
    Aggregates,
    App,
    Count,
    Event,
    Max,
    OfKey,
    OutputStream,
    Pairs,
    ProcessingElement,
    Stream,
    Sum,
    Top,
    count,
    day,
    hopping,
    session,
    tumbling,
)
from s4node.app.windows import WindowKind

LATENESS = 5


class Reading(Event):
    meter: str
    value: int
    at: float


class Answer(Event):
    meter: str
    value: int
    at: float


class Row(Event):
    pe: str
    key: str
    at: float
    values: list[float]


class Whole(ProcessingElement):
    """Counts and adds up, in windows of any kind."""

    rows: OutputStream
    kind: str = ""
    readings: int = 0
    total: int = 0

    def on_event(self, reading: Reading) -> None:
        self.readings += 1
        self.total += reading.value

    def on_window(self) -> None:
        values = [self.window.start, self.window.end, self.readings, self.total]
        self.rows.put(Row(self._prototype.name, str(self.key), self.window.last, values))  # type: ignore[attr-defined]

    def merge(self, later: Whole) -> None:
        self.readings += later.readings
        self.total += later.total


class Passing(Whole):
    """Gives its results to a second hop, too."""

    sums: Stream

    def on_window(self) -> None:
        super().on_window()
        self.sums.put(Reading("all", self.total, self.window.last))


class Streak(Whole):
    """Has state of the key: how often in a row a window had more than the one before."""

    rising: OfKey[int] = 0
    before: OfKey[int] = 0

    def on_window(self) -> None:
        self.rising = self.rising + 1 if self.total > self.before else 0
        self.before = self.total
        self.rows.put(Row("Streak", str(self.key), self.window.last, [self.rising]))


class Declared(Aggregates, of=Reading):
    rows: OutputStream
    readings = Count()
    total = Sum("value")
    most = Max("value")
    best = Top(3, "value")

    def on_window(self) -> None:
        values = [self.readings, self.total, self.most, *self.best]
        self.rows.put(Row("Declared", str(self.key), self.window.last, values))


class Timed(ProcessingElement):
    """Has a timer for each reading, and one by the clock."""

    rows: OutputStream
    fired: int = 0

    def on_event(self, reading: Reading) -> None:
        self.at(reading.at + 12, f"{reading.at}")
        self.at(4e9, "in 2096", clock="wall")

    def on_timer(self, name: str) -> None:
        self.fired += 1
        self.rows.put(Row("Timed", str(self.key), float(name), [self.fired]))


class Digest(ProcessingElement):
    """Depends on the order of its events."""

    rows: OutputStream
    digest: int = 0

    def on_event(self, reading: Reading) -> None:
        self.digest = (self.digest * 31 + reading.value) % 1_000_003
        self.rows.put(Row("Digest", str(self.key), reading.at, [self.digest]))


class Answered(Pairs, left=Reading, right=Answer, within=(3, 9)):
    rows: OutputStream

    def on_pair(self, left: Reading, right: Answer) -> None:
        self.rows.put(Row("pair", left.meter, left.at, [left.value, right.value, right.at]))

    def on_alone(self, left: Reading) -> None:
        self.rows.put(Row("alone", left.meter, left.at, [left.value]))


KINDS: dict[str, tuple[type[Whole], WindowKind]] = {
    "tumbling": (Passing, tumbling(10)),
    "hopping": (Whole, hopping(30, every=10)),
    "uneven": (Whole, hopping(25, every=10)),
    "session": (Whole, session(gap=4)),
    "day": (Whole, day("Europe/Berlin")),
    "graceful": (Whole, tumbling(15)),
    "streak": (Streak, tumbling(20)),
}


class Windowed(App):
    def on_init(self) -> None:
        rows = self.create_output_stream("rows", types=Row)
        pes: list[ProcessingElement] = []
        for name, (cls, kind) in KINDS.items():
            pe = self.create_pe(cls, name=name)
            pe.rows = rows
            pe.set_window(kind, grace=3 if name == "graceful" else 0)
            pes.append(pe)
        second = self.create_pe(Whole, name="second-hop")
        second.rows = rows
        second.set_window(tumbling(60))
        pes[0].sums = self.create_stream(  # type: ignore[attr-defined]
            "sums", second, key="meter", types=Reading, time="at"
        )
        declared, timed, digest = (self.create_pe(each) for each in (Declared, Timed, Digest))
        declared.rows = timed.rows = digest.rows = rows
        declared.set_window(hopping(20, every=10))
        pes += [declared, timed]
        self.create_input_stream(
            "readings", *pes, key="meter", types=Reading, time="at", lateness=LATENESS
        )
        self.create_input_stream(
            "sorted", digest, key="meter", types=Reading, time="at", lateness=LATENESS,
            order="time",
        )  # fmt: skip
        answered = self.create_pe(Answered)
        answered.rows = rows
        for name, kind in (("asked", Reading), ("answers", Answer)):
            self.create_input_stream(
                name, answered, key="meter", types=kind, time="at", lateness=LATENESS, order="time"
            )
        counted = self.create_pe(Whole, name="counted")
        counted.rows = rows
        counted.set_window(count(3))
        self.create_input_stream("plain", counted, key="meter", types=Reading)


class OverLog(App):
    """Windows over a log, with results in another one."""

    def on_init(self) -> None:
        ten = self.create_pe(Whole, name="ten")
        ten.rows = self.create_output_stream("rows", types=Row)
        ten.set_window(tumbling(10))
        self.create_input_stream("readings", ten, key="meter", types=Reading, time="at", lateness=5)
