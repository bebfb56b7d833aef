"""What holds for every roster: who is remembered without a lane, and where a new lane begins."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace

from s4node.log.log_rows import LogRows
from s4node.net.ingress.admission import StreamAdmission
from s4node.net.ingress.commit_rows import CommitRows
from s4node.net.ingress.producer_lane import Effects
from s4node.net.ingress.roster import Roster
from s4node.net.ingress.settlement import Commits
from s4node.net.wire import frame as wire
from s4node.offsets.producer_offsets import SavedProducer
from s4node.stages.stage import Stage

Rows: TypeAlias = dict[str, SavedProducer]
Remembers: TypeAlias = Callable[[Rows], StreamAdmission]

ROW = SavedProducer(7, 3, "i3", own_id=True)


def admission_of(roster: Roster) -> StreamAdmission:
    return StreamAdmission("ticks", {0: Stage(1000)}, Effects(), roster=roster)


def by_commits(rows: Rows) -> StreamAdmission:
    roster = CommitRows(Commits())
    admission = admission_of(roster)
    roster.restore(0, rows, 0.0)
    return admission


def by_a_log(rows: Rows) -> StreamAdmission:
    file: Any = SimpleNamespace(number=0, producers=rows, parts=lambda _: {})
    return admission_of(LogRows([file]))


by_rows = pytest.mark.parametrize("remembers", [by_commits, by_a_log])


def hello(incarnation: str, number: int, life: int = 0) -> wire.Hello:
    headers = {wire.OWN_ID: True, wire.NEW: True}
    position = wire.Position(0, number, life=life)
    return wire.Hello("p", incarnation, "ticks", positions=(position,), headers=headers)


@by_rows
def test_a_lane_begins_at_its_row_in_the_life_of_the_row(remembers: Remembers) -> None:
    admission = remembers({"p": ROW})
    greeting = admission.greet(hello("i3", 5, life=3), "line", 0.0)
    assert greeting is not None
    assert [(at.number, at.life) for at in greeting.positions] == [(7, 3)]
    admission.validate()


@by_rows
def test_a_new_life_follows_that_of_the_row_and_shuts_it_out(remembers: Remembers) -> None:
    admission = remembers({"p": ROW})
    new = replace(hello("i4", 0), positions=())
    greeting = admission.greet(new, "line", 0.0)
    assert greeting is not None
    assert [(at.number, at.life) for at in greeting.positions] == [(7, 4)]
    old = admission.greet(hello("i3", 7, life=3), "line", 0.0)
    assert old is not None
    assert "a program that was started later has used" in old.error


@by_rows
def test_a_producer_without_a_row_begins_where_it_says(remembers: Remembers) -> None:
    greeting = remembers({}).greet(hello("i1", 5), "line", 0.0)
    assert greeting is not None
    assert [(at.number, at.safe) for at in greeting.positions] == [(5, 5)]


def test_where_nobody_is_remembered_a_producer_begins_where_it_says() -> None:
    greeting = admission_of(Roster()).greet(hello("i1", 5), "line", 0.0)
    assert greeting is not None
    assert [(at.number, at.life) for at in greeting.positions] == [(5, 1)]
