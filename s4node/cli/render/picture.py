"""An app's diagram drawn with characters, for a terminal. Pure.

Rules
- PEs are boxes below each other, in the order in which events reach them. Inputs come from the
  left, outputs leave to the right.
- An internal stream is a line to the right of the boxes: ``├─`` is where a PE puts on it, ``◀─``
  where it leads to a PE. Lines cross at ``┼`` and meet only at ``╮``, ``┤`` and ``╯``.
- Feedback leads upwards, and is drawn as a broken line.
- Only words are shortened to fit the width. If the lines do not fit, the drawing is wider.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from s4node.app.plan.cycles import describe
from s4node.cli.render.diagram import OF_THE_APP, PE, Diagram, Edge

_WIDEST_BOX = 30
_WIDEST_INPUT = 26
_LABEL = 18
"""The least width of the words at the right."""

_ASCII = str.maketrans(
    {
        **dict.fromkeys("┌┐└┘├┤╮╯", "+"),
        **dict.fromkeys("│┼", "|"),
        **dict(zip("─╎╌▶◀", "-:.><", strict=True)),
        "…": "...",
        "↺": "(feedback)",
    }
)
_LAST = "…"


def picture(diagram: Diagram, width: int = 100, *, ascii_only: bool = False) -> str:
    """The drawing, with a newline at its end; aims at ``width`` characters."""
    boxes = _boxes(diagram)
    canvas = _Canvas()
    left = _draw_inputs(canvas, boxes)
    body = min(_WIDEST_BOX, max((len(t) for box in boxes for t in box.texts), default=0)) + 4
    for box in boxes:
        box.draw(canvas, left, body)
    _draw_streams(canvas, boxes, left + body, width)
    lines = [_headline(diagram), "", *canvas.lines()]
    if diagram.cycles:
        lines += ["", "feedback:", *(f"  {describe(cycle)}" for cycle in diagram.cycles)]
    text = "\n".join(lines) + "\n"
    return text.translate(_ASCII).encode("ascii", "replace").decode() if ascii_only else text


def _headline(diagram: Diagram) -> str:
    counts = [(len(diagram.of_kind(kind)), kind) for kind in ("input", "internal", "output")]
    streams = ", ".join(f"{count} {kind}" for count, kind in counts if count) or "none"
    return f"{diagram.app}   PEs: {len(diagram.pes)}   streams: {streams}"


@dataclass
class _Box:
    """One PE, and the rows at which streams touch its box."""

    texts: list[str]
    inputs: list[tuple[str, str]] = field(default_factory=list)
    takes: list[Edge] = field(default_factory=list)
    puts: list[Edge] = field(default_factory=list)
    top: int = 0

    @property
    def height(self) -> int:
        """The number of rows, including the two of the frame."""
        left = sum(1 + bool(details) for _, details in self.inputs)
        return 2 + max(len(self.texts), left, len(self.takes) + len(self.puts))

    def row_of_take(self, stream: Edge) -> int:
        """The row at which the stream comes in from the right."""
        return self.top + 1 + self.takes.index(stream)

    def row_of_put(self, stream: Edge) -> int:
        """The row at which the stream goes out."""
        return self.top + 1 + len(self.takes) + self.puts.index(stream)

    def draw(self, canvas: _Canvas, left: int, width: int) -> None:
        """Draw the frame and the texts."""
        canvas.write(self.top, left, "┌" + "─" * (width - 2) + "┐")
        for row in range(1, self.height - 1):
            text = self.texts[row - 1] if row <= len(self.texts) else ""
            canvas.write(self.top + row, left, f"│ {_short(text, width - 4):<{width - 4}} │")
        canvas.write(self.top + self.height - 1, left, "└" + "─" * (width - 2) + "┘")


@dataclass
class _Rail:
    """The vertical line of an internal stream, and the rows at which it is touched."""

    stream: Edge
    rows: list[int]
    column: int = 0

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last row."""
        return min(self.rows), max(self.rows)


class _Canvas:
    """Characters by row and column."""

    def __init__(self) -> None:
        self._rows: list[list[str]] = []

    def write(self, row: int, column: int, text: str) -> None:
        """Write ``text``, extending the canvas as needed."""
        while len(self._rows) <= row:
            self._rows.append([])
        line = self._rows[row]
        line += " " * (column + len(text) - len(line))
        line[column : column + len(text)] = text

    def at(self, row: int, column: int) -> str:
        line = self._rows[row] if row < len(self._rows) else []
        return line[column] if column < len(line) else " "

    def lines(self) -> list[str]:
        """The lines of the drawing, without trailing spaces."""
        return ["".join(row).rstrip() for row in self._rows]


def _boxes(diagram: Diagram) -> list[_Box]:
    """The boxes, with their streams and their rows."""
    boxes = {pe.name: _Box(_words(pe)) for pe in diagram.pes}
    if any(OF_THE_APP in stream.sources for stream in diagram.streams):
        boxes = {OF_THE_APP: _Box([diagram.app, "the app's own sources"]), **boxes}
    named: set[str] = set()
    for name, box in boxes.items():
        for stream in diagram.streams:
            if name in stream.targets:
                if stream.kind == "input":
                    box.inputs.append((stream.name, "" if stream.name in named else stream.carries))
                    named.add(stream.name)
                if stream.kind != "input" or stream.sources:
                    box.takes.append(stream)
            if name in stream.sources:
                box.puts.append(stream)
    top = 0
    for box in boxes.values():
        box.top = top
        top += box.height
    return list(boxes.values())


def _words(pe: PE) -> list[str]:
    return [pe.name, *([pe.class_name] if pe.class_name != pe.name else []), *pe.notes]


def _draw_inputs(canvas: _Canvas, boxes: list[_Box]) -> int:
    """Draw the input streams at the left; returns the column at which the boxes begin."""
    texts = [text for box in boxes for pair in box.inputs for text in pair]
    if not texts:
        return 0
    width = min(_WIDEST_INPUT, max(map(len, texts)))
    for box in boxes:
        row = box.top + 1
        for name, details in box.inputs:
            name = _short(name, width)
            canvas.write(row, 0, name + " " + "─" * (width - len(name) + 1) + "▶")
            row += 1
            if details:
                canvas.write(row, 0, _short(details, width))
                row += 1
    return width + 3


def _draw_streams(canvas: _Canvas, boxes: list[_Box], left: int, width: int) -> None:
    """Draw internal streams as rails, outputs as arrows; the boxes end at column ``left``."""
    rails = _rails(boxes)
    columns = max((rail.column for rail in rails.values()), default=-1) + 1
    for rail in rails.values():
        line = "╎" if rail.stream.feedback else "│"
        for row in range(rail.span[0], rail.span[1] + 1):
            canvas.write(row, left + 1 + 2 * rail.column, line)
    labels = left + 2 * columns + 2
    ports: dict[int, Edge] = {}
    for box in boxes:
        for stream in box.takes:
            row = box.row_of_take(stream)
            _draw_line(canvas, row, left, rails[stream.name], "◀")
            ports[row] = stream
        for stream in box.puts:
            row = box.row_of_put(stream)
            canvas.write(row, left - 1, "├")
            if stream.name in rails:
                _draw_line(canvas, row, left, rails[stream.name], "╌" if stream.feedback else "─")
            else:
                _draw_across(canvas, row, left, labels - 2, "─")
                canvas.write(row, labels - 2, "▶")
            ports[row] = stream
    _draw_labels(canvas, labels, max(_LABEL, width - labels), ports)


def _draw_labels(canvas: _Canvas, column: int, room: int, ports: dict[int, Edge]) -> None:
    """Write the stream's name at each of its ends, and what it carries at the first one."""
    told: set[str] = set()
    for row, stream in ports.items():
        words = stream.name + (" ↺" if stream.feedback else "")
        carries = "" if stream.name in told or stream.kind == "input" else stream.carries
        told.add(stream.name)
        if carries and len(f"{words}: {carries}") > room and row + 1 not in ports:
            canvas.write(row + 1, column, _short(carries, room))
        elif carries:
            words += f": {carries}"
        canvas.write(row, column, _short(words, room))


def _rails(boxes: list[_Box]) -> dict[str, _Rail]:
    """The rails by stream; short ones are close to the boxes."""
    rails: dict[str, _Rail] = {}
    for box in boxes:
        for stream in box.takes:
            rails.setdefault(stream.name, _Rail(stream, [])).rows.append(box.row_of_take(stream))
        for stream in box.puts:
            if stream.targets:
                rail = rails.setdefault(stream.name, _Rail(stream, []))
                rail.rows.append(box.row_of_put(stream))
    taken: list[list[tuple[int, int]]] = []
    for rail in sorted(rails.values(), key=lambda r: (r.span[1] - r.span[0], r.span)):
        first, last = rail.span
        free = (
            column
            for column, spans in enumerate(taken)
            if all(last < other_first or other_last < first for other_first, other_last in spans)
        )
        rail.column = next(free, len(taken))
        if rail.column == len(taken):
            taken.append([])
        taken[rail.column].append(rail.span)
    return rails


def _draw_line(canvas: _Canvas, row: int, left: int, rail: _Rail, head: str) -> None:
    """Draw the line from a box to a rail, and the point where they meet."""
    line = "╌" if rail.stream.feedback else "─"
    column = left + 1 + 2 * rail.column
    _draw_across(canvas, row, left, column, line)
    canvas.write(row, left, head)
    first, last = rail.span
    corner = "╮" if row == first else "╯" if row == last else "┤"
    canvas.write(row, column, corner)


def _draw_across(canvas: _Canvas, row: int, left: int, right: int, line: str) -> None:
    for column in range(left, right):
        canvas.write(row, column, "┼" if canvas.at(row, column) in "│╎┼" else line)


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + _LAST
