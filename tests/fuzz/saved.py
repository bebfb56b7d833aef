"""The saved inputs of each target: a file of lines in hex."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_FOLDER = Path(__file__).parent / "corpus"
_LONGEST = 400  # bytes of an input that is saved for what it reaches


def saved(name: str) -> list[bytes]:
    path = _FOLDER / f"{name}.hex"
    return [bytes.fromhex(line) for line in path.read_text().split()] if path.exists() else []


def add(name: str, inputs: Iterable[bytes]) -> None:
    short = {data for data in inputs if 0 < len(data) <= _LONGEST}
    lines = [data.hex() for data in sorted({*saved(name), *short}, key=lambda d: (len(d), d))]
    (_FOLDER / f"{name}.hex").write_text("".join(f"{line}\n" for line in lines if line))
