"""An app drawn: its diagram, as Mermaid and with characters."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.flights.adapter import FlightsAdapter
from apps.flights.app import FlightsApp
from s4node import App, Event, KeyFinder, ProcessingElement
from s4node.cli.render.diagram import Diagram, diagram_of
from s4node.cli.render.mermaid import mermaid
from s4node.cli.render.picture import picture


class Job(Event):
    user: str
    depth: int = 0


def test_the_flights_app_is_drawn_with_its_inputs_left_and_its_outputs_right() -> None:
    assert picture(flights(), 80) == FLIGHTS


def test_feedback_is_drawn_broken_and_named_below() -> None:
    assert picture(loop(), 80) == LOOP


def test_a_terminal_without_box_characters_gets_plain_ones() -> None:
    assert picture(loop(), 80, ascii_only=True) == LOOP_IN_ASCII


def test_what_a_stream_carries_moves_below_its_name_where_the_width_asks_for_it() -> None:
    lines = picture(flights(), 64).splitlines()

    assert max(map(len, lines)) <= 64
    assert lines[3].endswith("reports: Report")
    assert lines[5].endswith("by_aircraft")
    assert lines[6].endswith("Flight by tailnum")


def test_sources_of_the_app_itself_have_a_box_of_their_own() -> None:
    app = App("lines")
    app.create_output_stream("names", types=Job)

    assert picture(diagram_of(app), 80) == (
        "lines   PEs: 0   streams: 1 output\n"
        "\n"
        "┌───────────────────────┐\n"
        "│ lines                 ├▶ names: Job\n"
        "│ the app's own sources │\n"
        "└───────────────────────┘\n"
    )


def test_an_app_of_nothing_is_drawn_as_such() -> None:
    assert picture(diagram_of(App("empty"))) == "empty   PEs: 0   streams: none\n\n"
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


# --- the drawing says what the diagram says ------------------------------------------------------


def read(drawing: str) -> dict[str, tuple[set[str], set[str]]]:
    """The internal streams as a reader follows their lines: name -> PEs at its two ends."""
    lines = drawing.split("\n\n", 1)[1].split("\n\nfeedback:")[0].splitlines()
    edge = max(line.find("┐") for line in lines)  # where the boxes end
    grid = [line.ljust(200) for line in lines]
    boxes = [re.search(r"│ (\w+) ", grid[row + 1][:edge]) for row in range(len(grid) - 1)]
    tops = [row for row, line in enumerate(grid) if line[edge] == "┐"]
    owner = {
        row: match[1]
        for top, end in zip(tops, [*tops[1:], len(grid)], strict=True)
        for row in range(top, end)
        if (match := boxes[top])
    }
    found: dict[str, tuple[set[str], set[str]]] = {}
    for row, line in enumerate(grid):
        if line[edge] != "├" and line[edge + 1] != "◀":
            continue
        column = edge + 1 if line[edge] == "├" else edge + 2
        while line[column] in "─╌┼":
            column += 1
        if line[column] == "▶":
            continue
        assert line[column] in "╮┤╯", drawing
        sources, targets = set(), set()
        for at in rows_of(grid, row, column):
            end = column - 1
            while grid[at][end] in "─╌┼":
                end -= 1
            assert grid[at][end] in "◀├", drawing
            (targets if grid[at][end] == "◀" else sources).add(owner[at])
        label = re.search(r"(\w+)( ↺)?(: |$)", line.rstrip())
        assert label, drawing
        assert found.setdefault(label[1], (sources, targets)) == (sources, targets), drawing
    return found


def rows_of(grid: list[str], row: int, column: int) -> list[int]:
    """The rows where something joins the upright line through this place."""
    first = last = row
    while grid[first][column] != "╮":
        first -= 1
    while grid[last][column] != "╯":
        last += 1
    assert all(grid[at][column] in "│╎┼┤" for at in range(first + 1, last))
    return [at for at in range(first, last + 1) if grid[at][column] in "╮┤╯"]


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
def test_lines_lead_from_every_pe_that_puts_to_every_pe_that_takes(
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
    assert read(picture(diagram, 150)) == wanted

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


FLIGHTS = """\
FlightsApp   PEs: 3   streams: 1 input, 2 internal, 1 output

                  ┌─────────────────┐
flights ─────────▶│ route           ├────▶ reports: Report
Flight by route   │ RouteStatistics ├─╮    by_carrier: Flight by carrier
                  │ every 0.5 s     ├─┼─╮  by_aircraft: Flight by tailnum
                  └─────────────────┘ │ │
                  ┌─────────────────┐ │ │
                  │ carrier         │◀╯ │  by_carrier
                  │ DelayStatistics ├───┼▶ reports
                  │ every 0.5 s     │   │
                  └─────────────────┘   │
                  ┌─────────────────┐   │
                  │ aircraft        │◀──╯  by_aircraft
                  │ DelayStatistics ├────▶ reports
                  │ every 0.5 s     │
                  └─────────────────┘
"""

LOOP = """\
loop   PEs: 3   streams: 1 input, 3 internal, 1 output

              ┌──────┐
in ──────────▶│ a    │◀╌╌╮  again ↺: Job by user
Job by user   │ Step ├─╮ ╎  ab: Job by user
              └──────┘ │ ╎
              ┌──────┐ │ ╎
              │ b    │◀╯ ╎  ab
              │ Step │◀╌╌┤  again ↺
              │      ├─╮ ╎  bc: Job by user
              └──────┘ │ ╎
              ┌──────┐ │ ╎
              │ c    │◀╯ ╎  bc
              │ Step ├╌╌╌╯  again ↺
              │      ├────▶ out
              └──────┘

feedback:
  ab -> bc -> again -> ab
"""

LOOP_IN_ASCII = """\
loop   PEs: 3   streams: 1 input, 3 internal, 1 output

              +------+
in ---------->| a    |<..+  again (feedback): Job by user
Job by user   | Step +-+ :  ab: Job by user
              +------+ | :
              +------+ | :
              | b    |<+ :  ab
              | Step |<..+  again (feedback)
              |      +-+ :  bc: Job by user
              +------+ | :
              +------+ | :
              | c    |<+ :  bc
              | Step +...+  again (feedback)
              |      +----> out
              +------+

feedback:
  ab -> bc -> again -> ab
"""
