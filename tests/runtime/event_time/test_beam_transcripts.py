"""Beam's transcripts of triggers, by name: what comes out after each input and watermark.

``fixtures/beam_trigger_transcripts.yaml`` is Beam's. Its times are whole, so the last one of a
window is that before its end. A pane's index is the round; it is late if it is not the first one.
"""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import yaml
from harness import ROOT

from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.stream import OutputStream
from s4node.app.windows import tumbling
from s4node.events.event import Event
from s4node.testing.app_test import AppTest

BY_COUNT = "early and late results come by the clock or with each event, not by their number"
NOT_OFFERED = {
    "timestamp_combiner_custom_timestamping_earliest (OUTPUT_AT_EARLIEST_TRANSFORMED)":
        "no function of a kind of windows changes the times of events",
    "early_late_sessions": BY_COUNT,
    "discarding_early_fixed": BY_COUNT + "; results are of all events, they discard none",
    "garbage_collection": BY_COUNT + "; results are of all events, they discard none",
}  # fmt: skip
LEFT_OUT = {
    "final": "Beam's says that no pane follows; ours, that the window has ended",
    "timestamp of known_late_data_watermark": "the app gives the time of a result; no event holds",
    "timestamp of known_late_data_no_watermark_hold_possible": "the same",
}


class Element(Event):
    at: float


class Pane(Event):
    window: tuple[int, int]
    values: list[int]
    timestamp: int
    index: int
    late: bool
    early: bool


class Collect(ProcessingElement):
    panes: OutputStream
    combiner: str
    times: list[int] = []  # noqa: RUF012 - each instance has its own

    def on_event(self, element: Element) -> None:
        self.times = sorted([*self.times, int(element.at)])

    def on_window(self) -> None:
        start, last = int(self.window.start), math.ceil(self.window.end) - 1
        ends = {"EARLIEST": self.times[0], "LATEST": self.times[-1], "EOW": last}
        again, early = self.window.round, not self.window.final
        at = ends[self.combiner]
        self.panes.put(Pane((start, last), self.times, at, again, again > 0 and not early, early))


class Windows(App):
    spec: dict[str, Any]

    def on_init(self) -> None:
        collect = self.create_pe(Collect)
        collect.panes = self.create_output_stream("panes", types=Pane)
        collect.combiner = self.spec.get("timestamp_combiner", "OUTPUT_AT_EOW")[len("OUTPUT_AT_") :]
        size = re.fullmatch(
            r"\w*FixedWindows\w*\((\d+)\)", self.spec.get("window_fn", "FixedWindows(10)")
        )
        assert size, self.spec["window_fn"]
        collect.set_window(tumbling(int(size[1])), grace=self.spec.get("allowed_lateness", 0))
        # only the transcript moves the watermark
        self.create_input_stream("elements", collect, key=lambda _: "all", types=Element, time="at",
                                 lateness=LATENESS)  # fmt: skip


LATENESS = 10_000.0


def play(spec: dict[str, Any]) -> None:
    """Do what a transcript says. Raises AssertionError if something else comes out."""
    with AppTest(type("Windows", (Windows,), {"spec": spec})) as test:
        found: list[Pane] = []
        for step in spec["transcript"]:
            [(action, told)] = step.items()
            if action == "expect":
                for wanted in told:
                    near = [pane for pane in found if is_like(pane, wanted, spec["name"])]
                    assert near, f"Unmatched output: {wanted} among {found}"
                    found.remove(near[0])
                continue
            assert not found, f"Unexpected output: {found}"
            if action == "input":
                test.send("elements", *(Element(float(at)) for at in told))
            else:
                assert action == "watermark", action
                test.advance_watermark("elements", told + LATENESS)
            test.advance(seconds=1)
            found = test.take_output("panes")
        assert not found, f"Unexpected output: {found}"


def is_like(pane: Pane, wanted: dict[str, Any], name: str) -> bool:
    """Return True if a pane has the expected attributes."""
    return all(
        (list(value) if isinstance(value := getattr(pane, attribute), tuple) else value) == expected
        for attribute, expected in wanted.items()
        if attribute not in LEFT_OUT and f"{attribute} of {name}" not in LEFT_OUT
    )


def transcripts(*, bad: bool) -> list[Any]:
    """The transcripts, or those that have to be found wrong, by name."""
    text = (ROOT / "tests" / "fixtures" / "beam_trigger_transcripts.yaml").read_text()
    found: dict[str, Any] = {}
    for spec in yaml.safe_load_all(text):
        name = spec["name"]
        name += f" ({spec['timestamp_combiner']})" if name in found else ""
        found[name] = spec
    assert found.keys() >= NOT_OFFERED.keys()
    skipped = {name: [pytest.mark.skip(reason=why)] for name, why in NOT_OFFERED.items()}
    return [
        pytest.param(spec, id=name, marks=skipped.get(name, []))
        for name, spec in found.items()
        if ("error" in spec) is bad
    ]


@pytest.mark.parametrize("spec", transcripts(bad=False))
def test_what_comes_out_of_windows_is_what_beam_expects(spec: dict[str, Any]) -> None:
    play(spec)


@pytest.mark.parametrize("spec", transcripts(bad=True))
def test_a_transcript_that_expects_something_else_is_found_wrong(spec: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match=spec["error"]):
        play(spec)
