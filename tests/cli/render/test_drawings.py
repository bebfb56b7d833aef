"""An app drawn: its diagram, and as Mermaid."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.flights.adapter import FlightsAdapter
from apps.flights.app import FlightsApp
from s4node import App, Event, KeyFinder, ProcessingElement
from s4node.cli.render.diagram import Diagram, diagram_of
from s4node.cli.render.mermaid import mermaid


class Job(Event):
    user: str
    depth: int = 0


def test_an_app_of_nothing_is_drawn_as_such() -> None:
    assert mermaid(diagram_of(App("empty"))) == "flowchart LR\n"


def test_the_settings_of_a_pe_are_noted() -> None:
    app = App("notes")
    pe = app.create_pe(Step)
    pe.set_timer_interval(0.5)
    pe.set_trigger(Job, events=10, seconds=5)
    pe.set_trigger(Job, seconds=2)
    pe.set_pe_cache(1000, 60)
    one = app.create_pe(Step)
    one.set_singleton()

    assert [(p.name, p.class_name, p.notes) for p in diagram_of(app).pes] == [
        (
            "Step",
            "Step",
            (
                "every 0.5 s",
                "trigger: 10 Job or 5 s",
                "trigger: 2 s",
                "cache: 1000 keys, 60 s idle",
            ),
        ),
        ("Step#2", "Step", ("singleton",)),
    ]


class ByUser:
    name = "user-finder"

    def get(self, job: Job) -> str:
        return job.user


class Unnamed:
    def get(self, job: Job) -> str:
        return job.user


def by_hand(job: Job) -> str:
    return job.user


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("user", "Job by user"),
        (["user", "depth"], "Job by user+depth"),
        (ByUser(), "Job by user-finder"),
        (Unnamed(), "Job by Unnamed"),
        (by_hand, "Job by by_hand"),
        (lambda job: job.user, "Job by a function"),
        (None, "Job"),
    ],
)
def test_a_streams_key_is_shown_in_words(key: str | KeyFinder | None, words: str) -> None:
    app = App("keys")
    app.create_input_stream("in", app.create_pe(Step), key=key)

    assert diagram_of(app).streams[0].carries == words


def test_pes_stand_in_the_order_in_which_events_reach_them_whatever_was_declared_first() -> None:
    app = App("order")
    last, middle, first, timed = (
        app.create_pe(Step, name=name) for name in ("last", "middle", "first", "timed")
    )
    first.outs = [app.create_stream("b", middle, key="user")]
    middle.outs = [app.create_stream("c", last, key="user")]
    timed.outs = [app.create_stream("t", last, key="user")]
    app.create_input_stream("a", first, key="user")

    assert [pe.name for pe in diagram_of(app).pes] == ["first", "middle", "timed", "last"]
    assert not any(stream.feedback for stream in diagram_of(app).streams)


def test_the_json_says_who_feeds_whom() -> None:
    app = FlightsAdapter()
    app.output_stream = "flights"
    app.on_init()

    assert diagram_of(app).as_json() == {
        "app": "FlightsAdapter",
        "pes": ({"name": "Convert", "class_name": "Convert", "notes": ("singleton",)},),
        "streams": (
            {
                "name": "rows",
                "kind": "input",
                "key": "",
                "types": ("Row",),
                "broadcast": False,
                "sources": (),
                "targets": ("Convert",),
                "feedback": False,
            },
            {
                "name": "flights",
                "kind": "output",
                "key": "route",
                "types": ("Flight",),
                "broadcast": False,
                "sources": ("Convert",),
                "targets": (),
                "feedback": False,
            },
        ),
        "cycles": (),
    }


# --- Mermaid -------------------------------------------------------------------------------------


def test_the_flights_app_as_mermaid() -> None:
    assert (
        mermaid(flights())
        == """\
flowchart LR
    p0["route<br/>RouteStatistics<br/>every 0.5 s"]
    p1["carrier<br/>DelayStatistics<br/>every 0.5 s"]
    p2["aircraft<br/>DelayStatistics<br/>every 0.5 s"]
    s0(["reports"])
    p0 -->|"Report"| s0
    p1 -->|"Report"| s0
    p2 -->|"Report"| s0
    p0 -->|"by_carrier<br/>Flight by carrier"| p1
    p0 -->|"by_aircraft<br/>Flight by tailnum"| p2
    s3(["flights"])
    s3 -->|"Flight by route"| p0
"""
    )


def test_feedback_is_dotted_in_mermaid() -> None:
    dotted = [line.strip() for line in mermaid(loop()).splitlines() if "-.->" in line]

    assert dotted == [
        'p2 -.->|"again<br/>Job by user"| p0',
        'p2 -.->|"again<br/>Job by user"| p1',
    ]


def test_a_stream_between_several_pes_on_both_sides_is_a_node_in_mermaid() -> None:
    app = App("bus")
    pes = [app.create_pe(Step, name=name) for name in "abcd"]
    bus = app.create_stream("bus", *pes[2:], key="user")
    pes[0].outs = pes[1].outs = [bus]

    assert mermaid(diagram_of(app)).splitlines()[5:] == [
        '    s0(["bus"])',
        "    p0 --> s0",
        "    p1 --> s0",
        '    s0 -->|"Job by user"| p2',
        '    s0 -->|"Job by user"| p3',
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ('a"b', "a#34;b"),
        ("Count#2", "Count#35;2"),
        ("1. list", "#49;. list"),
        ("- item", "#45; item"),
        ("<script>", "#60;script#62;"),
        ("`code`", "#96;code#96;"),
        ("[b]{c}(d)", "#91;b#93;#123;c#125;(d)"),
        ("ü ☃", "#252; #9731;"),
        ("two\nlines", "two lines"),
        ("style p0 fill:#f00", "style p0 fill#58;#35;f00"),
        ("p|q; end", "p|q; end"),
    ],
)
def test_any_name_is_safe_in_mermaid(name: str, text: str) -> None:
    app = App("names")
    app.create_pe(Step, name=name)

    assert mermaid(diagram_of(app)).splitlines()[1] == f'    p0["{text}<br/>Step"]'


@given(
    st.integers(1, 7).flatmap(
        lambda n: st.lists(
            st.tuples(
                st.sets(st.integers(0, n - 1), min_size=1),
                st.sets(st.integers(0, n - 1), min_size=1),
            ),
            max_size=12,
        ).map(lambda streams: (n, streams))
    )
)
def test_streams_lead_from_every_pe_that_puts_to_every_pe_that_takes(
    graph: tuple[int, list[tuple[set[int], set[int]]]],
) -> None:
    count, streams = graph
    app = App("any")
    pes = [app.create_pe(Step, name=f"pe{number}") for number in range(count)]
    app.create_input_stream("in", pes[0], key="user")
    outs: list[list[Any]] = [[app.create_output_stream("out", types=Job)] for _ in pes[:1]]
    outs += [[] for _ in pes[1:]]
    wanted = {}
    for number, (sources, targets) in enumerate(streams):
        stream = app.create_stream(f"s{number}", *(pes[t] for t in sorted(targets)), key="user")
        for source in sources:
            outs[source].append(stream)
        wanted[stream.name] = {f"pe{n}" for n in sources}, {f"pe{n}" for n in targets}
    for pe, put in zip(pes, outs, strict=True):
        pe.outs = put

    diagram = diagram_of(app)
    internal = [stream for stream in diagram.streams if stream.kind == "internal"]
    assert {each.name: (set(each.sources), set(each.targets)) for each in internal} == wanted

    cyclic = {name for cycle in diagram.cycles for name in cycle}
    if diagram.cycles:
        assert cyclic & {stream.name for stream in diagram.streams if stream.feedback}


# -- set-up ---------------------------------------------------------------------------------------


class Step(ProcessingElement):
    outs: Any = ()

    def on_event(self, job: Job) -> None: ...

    def on_trigger(self, job: Job) -> None: ...

    def on_time(self) -> None: ...


def flights() -> Diagram:
    app = FlightsApp()
    app.on_init()
    return diagram_of(app)


def loop() -> Diagram:
    """in -> a -> ab -> b -> bc -> c, and from c back to a and b by "again"."""
    app = App("loop")
    a, b, c = (app.create_pe(Step, name=name) for name in "abc")
    app.create_input_stream("in", a, key="user")
    a.outs = [app.create_stream("ab", b, key="user")]
    b.outs = [app.create_stream("bc", c, key="user")]
    c.outs = [app.create_stream("again", a, b, key="user"), app.create_output_stream("out")]
    return diagram_of(app)
