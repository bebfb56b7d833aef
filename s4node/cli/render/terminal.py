"""The dashboard on a terminal, through rich.

Rules
- A table that is too wide drops columns, the empty ones first, then the least important ones. A
  text breaks only at spaces.
- In a live display, each long text is one line.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from rich import table as rich
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from s4node.cli.render.dashboard import GAP, Line, Table, parts_of
from s4node.deploy.cluster_snapshot import Snapshot

_SHORTEST = 20
"""The least width of a column of long texts."""


class _Plain(Console):
    """Raises an error when its reader is gone, as print does, instead of exiting."""

    def on_broken_pipe(self) -> None:
        raise  # re-raises the error that is being handled


def show(snapshots: Sequence[Snapshot]) -> None:
    console = _Plain(highlight=False)
    console.print(rendered(snapshots, console.width, live=False))


async def show_live(displays: AsyncIterator[Sequence[Snapshot]]) -> None:
    """Show each of the displays in place of the one before, until there are no more."""
    console = _Plain(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as shown:
        async for snapshots in displays:
            shown.update(rendered(snapshots, console.width, live=True), refresh=True)


def rendered(snapshots: Sequence[Snapshot], width: int, *, live: bool) -> RenderableType:
    return Group(
        *(
            _line(part, whole=not live) if isinstance(part, Line) else _table(part, width, live)
            for part in parts_of(snapshots, live=live)
        )
    )


def _line(line: Line, *, whole: bool) -> Text:
    if line.style or whole:
        return Text(line.text, style=line.style, no_wrap=line.heading)
    return Text(line.text, no_wrap=True, overflow="ellipsis")


def _table(table: Table, width: int, live: bool) -> rich.Table:
    """A table of as many columns as fit."""
    columns = dict(zip(table.titles, zip(*table.lines, strict=True), strict=True))
    widths = {title: max(map(cell_len, (title, *texts))) for title, texts in columns.items()}
    long = table.long

    def room() -> int:
        """The width left for ``long`` beside the other columns."""
        others = [widths[title] + GAP for title in columns if title != long]
        return width - sum(others) + (0 if long else GAP)

    wanted = min(widths[long], _SHORTEST) if long else 0
    for title in sorted(table.spare, key=lambda title: any(columns[title])):
        if room() >= wanted:
            break
        del columns[title]
    drawn = rich.Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=True)
    for title in columns:
        folding = not live and title == long
        drawn.add_column(
            title,
            header_style="dim",
            no_wrap=not folding,
            overflow="fold" if folding else "ellipsis",
            max_width=max(room(), 1) if title == long else None,
        )
    for texts in zip(*columns.values(), strict=True):
        drawn.add_row(*map(escape, texts))
    return drawn
