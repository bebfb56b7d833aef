"""The dashboard: what ``s4 status`` and ``s4 top`` show of a cluster, as lines and tables.

Rules
- The most important rows come first, as a low terminal cuts off the end.
- Long texts are below the tables.
- Names and reasons are quoted if they have characters that would break or colour a line.
- Without a terminal the text is whole, whatever its width: programs read whole lines.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from s4node.deploy.cluster_snapshot import AppRow, PeRow, Row, Snapshot, duration, ranges
from s4node.errors import on_one_line

GAP = 2
"""The spaces between two columns."""


@dataclass(frozen=True)
class Line:
    """A line of its own. A ``heading`` is never wrapped; ``style`` is for terminals."""

    text: str
    style: str = ""
    heading: bool = False


@dataclass(frozen=True)
class Table:
    """Columns with titles. A narrow terminal drops those of ``spare``, in this order. The column
    ``long`` may be cut, or wrapped."""

    titles: Sequence[str]
    lines: Sequence[Sequence[str]]
    spare: Sequence[str] = ()
    long: str = ""


def text_of(snapshots: Sequence[Snapshot], *, live: bool) -> str:
    """The snapshots as text for programs and files."""
    return "\n".join(
        part.text if isinstance(part, Line) else _aligned(part)
        for part in parts_of(snapshots, live=live)
    )


def _aligned(table: Table) -> str:
    rows = [table.titles, *table.lines]
    widths = [max(map(len, column)) + GAP for column in zip(*rows, strict=True)]
    return "\n".join(
        "".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def parts_of(snapshots: Sequence[Snapshot], *, live: bool) -> list[Line | Table]:
    """The lines and tables of the snapshots, in their order. A ``live`` display has rates, and no
    counts that only grow."""
    return [part for each in snapshots for part in _parts(each, live=live)]


def _parts(snapshot: Snapshot, *, live: bool) -> list[Line | Table]:
    if not snapshot.nodes:
        return [Line(f"no node of cluster {snapshot.cluster!r} is running")]
    where = f"in {snapshot.folder}" if snapshot.folder else f"process {snapshot.nodes[0].pid}"
    parts: list[Line | Table] = [
        Line(on_one_line(f"cluster {snapshot.cluster}, {where}"), "bold", heading=True)
    ]
    if snapshot.bottleneck:
        parts.append(Line(f"bottleneck: {snapshot.bottleneck}", "bold red"))
    if snapshot.apps:
        parts.append(
            _table(
                ("app", "version", "state", "partitions"),
                [(a.name, a.version, a.state, _owned(a)) for a in snapshot.apps],
                spare=("version",),
                long="partitions",
            )
        )
    if snapshot.stages:
        parts.append(_stages(snapshot.stages, live=live))
    if snapshot.pes:
        parts.append(_pes(snapshot.pes))
    if snapshot.inputs:
        parts.append(
            _table(
                ("app", "input", "not processed", "oldest sent"),
                [
                    (
                        i.app,
                        i.input,
                        "unknown" if i.lag is None else f"{i.lag:,}",
                        f"{duration(i.late)} ago" if i.late else "",
                    )
                    for i in snapshot.inputs
                ],
                spare=("app",),
            )
        )
    if snapshot.outboxes:
        parts.append(
            _table(
                ("app", "outbox", "to", "waiting", "bytes"),
                [
                    (o.app, o.stream, o.consumer or "its own tasks", str(o.depth), f"{o.bytes:,}")
                    for o in snapshot.outboxes
                ],
                spare=("bytes",),
            )
        )
    parts.append(
        _table(
            ("node", "address", "process"),
            [(n.name, n.address, f"{n.pid} on {n.host}") for n in snapshot.nodes],
            spare=("process",),
        )
    )
    containers = [each for node in snapshot.nodes for each in node.containers]
    if containers:
        parts.append(
            _table(
                ("container", "node", "phase", "process", "address", "starts"),
                [
                    (c.app, c.node, c.phase, str(c.pid or ""), c.address, str(c.starts))
                    for c in containers
                ],
                spare=("address", "process", "starts"),
            )
        )
    if snapshot.streams:
        parts.append(
            _table(
                ("stream", "from", "to"),
                [
                    (one.stream, ", ".join(one.producers) or "-", ", ".join(one.consumers) or "-")
                    for one in snapshot.streams
                ],
            )
        )
    texts = [f"node {node.name} {node.problem}" for node in snapshot.nodes if node.problem]
    texts += [
        f"{c.app} on {c.node} ended at {_clock(c.failed_ms)} because: {c.failure}"
        for c in containers
        if c.failure
    ]
    texts += [
        f"task {one.task} of {one.app} fetches its state: {one.fetched:,} of at most "
        f"{one.wanted:,} objects"
        for one in snapshot.restoring
    ]
    texts += [
        (
            f"{len(one.tasks)} of the tasks of {one.app} cannot commit or start, and try again"
            if one.tasks
            else f"a container of {one.app} cannot start, and tries again"
        )
        + f": {one.reason}"
        for one in snapshot.failing
    ]
    texts += [f"system {one.system!r} of {one.app}: {one.reason}" for one in snapshot.away]
    texts += [
        f"node {one.node} is the standby of {len(one.tasks)} tasks of {one.app}, at most "
        f"{one.behind:.1f} s behind"
        for one in snapshot.standbys
    ]
    texts += [
        f"stream {one.stream} of {one.app} is at {_moment(one.at)}"
        + (
            f", {one.behind:.1f} s behind its latest event, held back by {one.holding or 'nothing'}"
            if one.behind >= 1
            else ""
        )
        if one.at
        else f"stream {one.stream} of {one.app} has no watermark yet, although windows or timers "
        f"wait for it; held back by {one.holding or 'nothing'}"
        for one in snapshot.watermarks
    ]
    texts += [
        f"stream {one.stream} of {one.app}: the clock of {one.skewed} is {one.ahead:.0f} s ahead"
        for one in snapshot.watermarks
        if one.skewed
    ]
    texts += [
        f"{one.app} has {one.windows} open windows, {one.held_back} events held back, and "
        f"{sum(one.late.values())} late ones"
        for one in snapshot.windows
    ]
    texts += [
        f"{one.app} does not read {', '.join(one.waiting)} now: further in time than slower inputs"
        for one in snapshot.windows
        if one.waiting
    ]
    parts += map(Line, map(on_one_line, texts))
    return parts


def _clock(millis: int) -> str:
    """A local time, to the second; with its date unless that is today."""
    at, now = time.localtime(millis / 1000), time.localtime()
    return time.strftime("%H:%M:%S" if at[:3] == now[:3] else "%Y-%m-%d %H:%M:%S", at)


def _owned(app: AppRow) -> str:
    if not any(app.owners):
        return f"{app.partitions}, owned by nobody"
    by: dict[str, list[int]] = {}
    for partition, owner in enumerate(app.owners):
        by.setdefault(owner, []).append(partition)
    parts = [f"{owner or 'nobody'}: {ranges(numbers)}" for owner, numbers in sorted(by.items())]
    spares = [member for member in app.members if member not in by]
    return "; ".join(parts) + (f"; spare: {', '.join(spares)}" if spares else "")


def _stages(rows: Sequence[Row], *, live: bool) -> Table:
    rare = [name for name in ("left_out", "unsendable") if any(getattr(row, name) for row in rows)]
    lines = []
    for row in rows:
        shed = ", ".join(f"{count} {reason}" for reason, count in sorted(row.shed.items()))
        lines.append(
            (
                row.app,
                row.stage,
                row.stream,
                row.grade,
                f"{row.depth}/{row.capacity}" if row.depth else "",
                f"{row.fullest:.0%}" if row.depth else "",
                str(row.admitted or ""),
                *(("" if row.rate is None else f"{row.rate:,.0f}/s",) if live else ()),
                duration(row.waited_last) if row.waited_last >= _WAITED else "",
                shed,
                *(str(getattr(row, name) or "") for name in rare),
            )
        )
    titles = ["app", "stage", "stream", "grade", "waiting", "full", "admitted"]
    titles += ["rate", "waited"] if live else ["waited"]
    titles += ["shed", *(name.replace("_", " ") for name in rare)]
    counted = ("admitted", "waited") if live else ("waited",)  # with rates, counts matter less
    return _table(titles, lines, spare=("grade", *counted, "waiting", "app", "shed"))


_WAITED = 5e-5
"""Seconds from which on a wait is shown; less is zero."""


def _pes(rows: Sequence[PeRow]) -> Table:
    """The handlers of PEs; keys only if one has a hundredth of the events."""
    lines = []
    for row in rows:
        events, key = max(((n, key) for key, n in row.hot.items()), default=(0.0, ""))
        lines.append(
            (
                row.app,
                row.pe,
                row.handler,
                f"{row.calls:,}",
                duration(row.seconds / row.calls),
                str(row.errors or ""),
                f"{key} {events / row.calls:.0%}" if key else "",
            )
        )
    titles = ("app", "PE", "handler", "calls", "each", "errors", "hottest key")
    return _table(titles, lines, spare=("errors", "app", "hottest key"))


def _table(
    titles: Sequence[str],
    lines: Sequence[Sequence[str]],
    *,
    spare: Sequence[str] = (),
    long: str = "",
) -> Table:
    return Table(titles, [[on_one_line(text) for text in line] for line in lines], spare, long)


def _moment(seconds: float) -> str:
    """A time of events, to the second."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g}"
