"""An app's diagram as Mermaid text, for pages that draw it. Pure.

Rules
- PEs are boxes, streams are arrows. Inputs and outputs end in a rounded node of their own, and so
  does an internal stream with several PEs on both sides, which would need too many arrows.
- Feedback is dotted.
- Every text is quoted, and characters that have a meaning in Mermaid are written as numbers, so any
  name is safe.
"""

from __future__ import annotations

import re

from s4node.cli.render.diagram import OF_THE_APP, Diagram, Edge

# a leading digit or sign would make a list of the text, and ":#" a style
_SPECIAL = re.compile(r"[^\w .,:;()/+=|-]|^[\d*+-]|:(?! )", re.ASCII)


def mermaid(diagram: Diagram) -> str:
    """A Mermaid flowchart from left to right, with a newline at its end."""
    pes = {pe.name: f"p{number}" for number, pe in enumerate(diagram.pes)}
    lines = ["flowchart LR"]
    if any(OF_THE_APP in stream.sources for stream in diagram.streams):
        pes[OF_THE_APP] = "app"
        lines.append(f'    app[["{_text(diagram.app)}"]]')
    for pe in diagram.pes:
        label = [pe.name, *([pe.class_name] if pe.class_name != pe.name else []), *pe.notes]
        lines.append(f'    {pes[pe.name]}["{_text(*label)}"]')
    for number, stream in enumerate(diagram.streams):
        lines += [f"    {line}" for line in _stream(stream, f"s{number}", pes)]
    return "\n".join(lines) + "\n"


def _stream(stream: Edge, node: str, pes: dict[str, str]) -> list[str]:
    sources = [pes[name] for name in stream.sources]
    targets = [pes[name] for name in stream.targets]
    line = "-.->" if stream.feedback else "-->"
    several = len(sources) > 1 and len(targets) > 1
    if stream.kind == "internal" and targets and not several:
        label = _text(stream.name, stream.carries)
        return [f'{s} {line}|"{label}"| {t}' for s in sources for t in targets]
    label = _text(stream.carries)
    arrow = f'{line}|"{label}"|' if label else line
    lines = [f'{node}(["{_text(stream.name)}"])']
    if stream.kind == "output" or not targets:
        return [*lines, *(f"{source} {arrow} {node}" for source in sources)]
    return [
        *lines,
        *(f"{source} {line} {node}" for source in sources),
        *(f"{node} {arrow} {target}" for target in targets),
    ]


def _text(*lines: str) -> str:
    return "<br/>".join(
        _SPECIAL.sub(lambda found: f"#{ord(found[0])};", " ".join(line.split()))
        for line in lines
        if line
    )
