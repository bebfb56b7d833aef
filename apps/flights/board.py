"""The board: an app that collects reports, and the table that shows them."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from apps.flights.events import KINDS, Figures, Report
from s4node import App, ProcessingElement

WORST = 8
FEWEST_FLIGHTS = 50
"""The number of arrivals from which a route can be among the worst."""


class Collect(ProcessingElement):
    """Keeps the latest report of each key."""

    def on_event(self, report: Report) -> None:
        assert isinstance(self.app, Board)
        self.app.figures[report.kind][report.key] = Figures(
            report.flights,
            report.cancelled,
            report.delay_count,
            report.delay_sum,
            report.delay_max,
            report.delay_min,
            report.late,
        )


class Board(App):
    """Input stream "reports"; ``figures`` holds the latest by kind and key."""

    figures: dict[str, dict[str, Figures]]

    def on_init(self) -> None:
        self.figures = {kind: {} for kind in KINDS}
        collect = self.create_pe(Collect)
        collect.set_singleton()
        self.create_input_stream("reports", collect)

    def counted(self, kind: str) -> int:
        """Flights counted so far for one kind of key."""
        return sum(figures.flights for figures in self.figures[kind].values())

    @property
    def complete_to(self) -> int:
        """Flights counted by every kind."""
        return min(map(self.counted, KINDS))


def picture(board: Board, stage: str, sent: int, total: int, rate: float) -> RenderableType:
    """Progress, throughput and the worst routes, for a terminal."""
    head = Table.grid(padding=(0, 2))
    head.add_row("Stage", Text(stage, style="bold"))
    counted = board.complete_to
    # Spark tells what it has sent partition by partition; it cannot be less than what has arrived.
    head.add_row("Spark has sent", _bar(max(sent, counted), total))
    head.add_row("PEs have counted", _bar(counted, total))
    head.add_row("Throughput", f"{rate:,.0f} flights/s")
    head.add_row(
        "PE instances", "   ".join(f"{kind} {len(board.figures[kind]):,}" for kind in KINDS)
    )
    table = worst_routes(board)
    return Group(head, Text(), table) if table.rows else head


def worst_routes(board: Board) -> Table:
    """The routes with the largest mean arrival delay."""
    table = Table(title="Worst routes by mean arrival delay", title_justify="left")
    for name in ("Route", "Flights", "Cancelled", "Mean delay", "Worst", "Late"):
        table.add_column(name, justify="left" if name == "Route" else "right")
    routes = [
        (figures.delay_sum / figures.delay_count, route, figures)
        for route, figures in board.figures["route"].items()
        if figures.delay_count >= FEWEST_FLIGHTS
    ]
    for mean, route, figures in sorted(routes, reverse=True)[:WORST]:
        table.add_row(
            route,
            f"{figures.flights:,}",
            f"{figures.cancelled:,}",
            f"{mean:.1f} min",
            f"{figures.delay_max} min",
            f"{figures.late / figures.delay_count:.0%}",
        )
    return table


def comparison(ours: dict[str, dict[str, Figures]], sparks: dict[str, dict[str, Figures]]) -> Table:
    """Both sides' figures, added up over the keys of each kind, and how many keys are equal."""
    table = Table(
        title="Streamed by s4node, and counted by Spark in one batch",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),  # seven columns have to fit into 80 characters
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("Over\nall keys")
    for kind in KINDS:
        table.add_column(f"{kind}\ns4node", justify="right")
        table.add_column("\nSpark", justify="right")
    sides = [figures for kind in KINDS for figures in (ours[kind], sparks[kind])]
    totals = [_totals(side) for side in sides]
    table.add_row("keys", *(f"{len(side):,}" for side in sides))
    for index, name in enumerate(Figures._fields):
        table.add_row(name.replace("_", " "), *(f"{total[index]:,}" for total in totals))
    equal = [sum(ours[k].get(key) == f for key, f in sparks[k].items()) for k in KINDS]
    table.add_row("equal keys", *(text for count in equal for text in (f"{count:,}", "")))
    return table


def differences(
    ours: dict[str, dict[str, Figures]], sparks: dict[str, dict[str, Figures]]
) -> list[str]:
    """One line for each key whose figures are not the same on both sides."""
    return [
        f"{kind} {key}: s4node {ours[kind].get(key)}, Spark {sparks[kind].get(key)}"
        for kind in KINDS
        for key in sorted(ours[kind].keys() | sparks[kind].keys())
        if ours[kind].get(key) != sparks[kind].get(key)
    ]


def _totals(figures: dict[str, Figures]) -> list[int]:
    columns = list(zip(*figures.values(), strict=True)) or [()] * len(Figures._fields)
    sums = {"delay_max": max, "delay_min": min}
    return [
        sums.get(name, sum)([value for value in column if value is not None] or [0])
        for name, column in zip(Figures._fields, columns, strict=True)
    ]


def _bar(done: int, total: int) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    row.add_row(ProgressBar(total=total, completed=done, width=30), f"{done:,} of {total:,}")
    return row
