"""The dashboard: shows a snapshot of a cluster, for ``s4 status`` and ``s4 top``.

Rules
- The most important rows come first, as a low terminal cuts off the end.
- A table that is too wide drops columns, the empty ones first, then the least important ones. Words
  are never broken.
- Long texts are below the tables; in a live display each is one line.
- Names and reasons are quoted if they have characters that would break or colour a line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from s4node.deploy.cluster_snapshot import AppRow, Row, Snapshot, ranges
from s4node.errors import on_one_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_NO_TERMINAL = 10_000
"""The width if there is no terminal: programs read whole lines."""

_GAP = 2
_SHORTEST = 20
"""The least width of a column of long texts."""


def console() -> Console:
    from rich.console import Console

    class Plain(Console):
        """Raises an error when its reader is gone, as print does, instead of exiting."""

        def on_broken_pipe(self) -> None:
            raise  # re-raises the error that is being handled

    return Plain(highlight=False, width=None if sys.stdout.isatty() else _NO_TERMINAL)


def show(console: Console, snapshots: Sequence[Snapshot], *, live: bool = False) -> None:
    console.print(rendered(snapshots, console.width, live=live))


def rendered(snapshots: Sequence[Snapshot], width: int, *, live: bool = False) -> RenderableType:
    """The snapshots in ``width`` columns. A ``live`` display has rates, and no counts that only
    grow."""
    from rich.console import Group

    return Group(*(_rendered(each, width, live=live) for each in snapshots))


def _rendered(snapshot: Snapshot, width: int, *, live: bool) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    if not snapshot.nodes:
        return Text(f"no node of cluster {snapshot.cluster!r} lives")
    where = f"in {snapshot.folder}" if snapshot.folder else f"process {snapshot.nodes[0].pid}"
    parts: list[RenderableType] = [
        Text(on_one_line(f"cluster {snapshot.cluster}, {where}"), style="bold", no_wrap=True)
    ]
    if snapshot.bottleneck:
        parts.append(Text(f"bottleneck: {snapshot.bottleneck}", style="bold red"))
    if snapshot.apps:
        parts.append(
            _table(
                ("app", "version", "state", "partitions"),
                [(a.name, a.version, a.state, _owned(a)) for a in snapshot.apps],
                width,
                spare=("version",),
                long="partitions",
                folds=not live,
            )
        )
    if snapshot.stages:
        parts.append(_stages(snapshot.stages, width, live=live))
    if snapshot.inputs:
        parts.append(
            _table(
                ("app", "input", "not processed"),
                [
                    (i.app, i.input, "unknown" if i.unprocessed is None else f"{i.unprocessed:,}")
                    for i in snapshot.inputs
                ],
                width,
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
                width,
                spare=("bytes",),
            )
        )
    parts.append(
        _table(
            ("node", "address", "process"),
            [(n.name, n.address, f"{n.pid} on {n.host}") for n in snapshot.nodes],
            width,
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
                width,
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
                width,
                spare=(),
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
        f"{len(one.tasks)} of the tasks of {one.app} cannot commit or start, and try again: "
        f"{one.reason}"
        for one in snapshot.failing
    ]
    texts += [
        f"streams feed themselves over several apps, which may wait for each other: {path}"
        for path in snapshot.cycles
    ]
    texts += [
        f"node {one.node} is the standby of {len(one.tasks)} tasks of {one.app}, at most "
        f"{one.behind:.1f} s behind"
        for one in snapshot.standbys
    ]
    texts += [
        f"stream {one.stream} of {one.app} is at {_moment(one.at)}, {one.behind:.1f} s behind its "
        f"latest event, held back by {one.holding or 'nothing'}"
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
        f"{one.late} late ones"
        for one in snapshot.windows
    ]
    texts += [
        f"{one.app} does not read {', '.join(one.waiting)} now: further in time than slower inputs"
        for one in snapshot.windows
        if one.waiting
    ]
    for text in map(on_one_line, texts):
        if live:
            parts.append(Text(text, no_wrap=True, overflow="ellipsis"))
        else:
            parts.append(Text(text))
    return Group(*parts)


def _clock(millis: int) -> str:
    """A local time, to the second; with its date unless that is today."""
    at, now = time.localtime(millis / 1000), time.localtime()
    return time.strftime("%H:%M:%S" if at[:3] == now[:3] else "%Y-%m-%d %H:%M:%S", at)


def _owned(app: AppRow) -> str:
    """The partitions of each owner."""
    if not any(app.owners):
        return f"{app.partitions}, owned by nobody"
    by: dict[str, list[int]] = {}
    for partition, owner in enumerate(app.owners):
        by.setdefault(owner, []).append(partition)
    parts = [f"{owner or 'nobody'}: {ranges(numbers)}" for owner, numbers in sorted(by.items())]
    spares = [member for member in app.members if member not in by]
    return "; ".join(parts) + (f"; spare: {', '.join(spares)}" if spares else "")


def _stages(rows: Sequence[Row], width: int, *, live: bool) -> RenderableType:
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
                f"{row.depth}/{row.capacity}",
                f"{row.fullest:.0%}",
                str(row.admitted),
                *(("" if row.rate is None else f"{row.rate:,.0f}/s",) if live else ()),
                f"{row.waited * 1000:.1f} ms",
                shed,
                *(str(getattr(row, name) or "") for name in rare),
            )
        )
    titles = ["app", "stage", "stream", "grade", "waiting", "full", "admitted"]
    titles += ["rate", "waited"] if live else ["waited"]
    titles += ["shed", *(name.replace("_", " ") for name in rare)]
    counted = ("admitted", "waited") if live else ("waited",)  # with rates, counts matter less
    return _table(titles, lines, width, spare=("grade", *counted, "waiting", "app", "shed"))


def _table(
    titles: Sequence[str],
    lines: Sequence[Sequence[str]],
    width: int,
    *,
    spare: Sequence[str],
    long: str = "",
    folds: bool = False,
) -> RenderableType:
    """A table of as many columns as fit: those of ``spare`` are dropped in this order. The column
    ``long`` wraps if ``folds``."""
    from rich.cells import cell_len
    from rich.markup import escape
    from rich.table import Table

    columns = {
        title: [on_one_line(line[index]) for line in lines] for index, title in enumerate(titles)
    }
    widths = {title: max(map(cell_len, (title, *texts))) for title, texts in columns.items()}

    def room() -> int:
        """The width left for ``long`` beside the other columns."""
        others = [widths[title] + _GAP for title in columns if title != long]
        return width - sum(others) + (0 if long else _GAP)

    wanted = min(widths[long], _SHORTEST) if long else 0
    for title in sorted(spare, key=lambda title: any(columns[title])):
        if room() >= wanted:
            break
        del columns[title]
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), show_header=True)
    for title in columns:
        folding = folds and title == long
        table.add_column(
            title,
            header_style="dim",
            no_wrap=not folding,
            overflow="fold" if folding else "ellipsis",
            max_width=max(room(), 1) if title == long else None,
        )
    for texts in zip(*columns.values(), strict=True):
        table.add_row(*map(escape, texts))
    return table


def _moment(seconds: float) -> str:
    """A time of events, to the second."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g}"
