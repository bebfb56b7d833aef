r"""Properties files: parses lines ``key = value``.

Rules
- A file is UTF-8 lines ``key = value``. A line that begins with ``#`` or ``!`` is a comment; a
  ``\`` at the end of a line joins the next one to it. There are no other escapes, and ``:`` does
  not separate, because values contain addresses.
- Mistakes are returned among the lines, so that all come out in order.
- This module does not know which keys there are, and which values they take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Problem:
    """A mistake: where it is (with ``line`` and ``key`` if known), and what to do."""

    file: str
    line: int | None
    key: str | None
    text: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.text}"


class Line(NamedTuple):
    """A ``key = value`` of a file or of the command line, not yet checked."""

    file: str
    number: int | None
    name: str
    text: str

    @property
    def location(self) -> str:
        return self.file if self.number is None else f"{self.file}:{self.number}"

    def problem(self, text: str) -> Problem:
        return Problem(self.file, self.number, self.name, text)


def read(path: Path) -> Iterator[Line | Problem]:
    """The lines of a file; a file that cannot be read is a single problem."""
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        yield Problem(str(path), None, None, f"cannot be read ({reason}); name a readable file")
        return
    try:
        text = data.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        yield Problem(str(path), number, None, "is not UTF-8 text; save the file as UTF-8")
        return
    yield from parse(str(path), text)


def parse(file: str, text: str) -> Iterator[Line | Problem]:
    """The lines of ``text``; messages call it ``file``."""
    seen: dict[str, int] = {}
    for number, line in _joined_lines(text):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals:
            yield Problem(file, number, None, f"{line!r} has no '='; write key = value")
        elif not name:
            yield Problem(file, number, None, f"{line!r} has no key; write key = value")
        elif value.endswith("\\"):
            yield Problem(file, number, name, f"{name} ends in '\\' but no line follows; remove it")
        else:
            yield Line(file, number, name, value)
        if name in seen:
            problem = f"{name} is already set on line {seen[name]}; remove one of the two"
            yield Problem(file, number, name, problem)
        elif equals and name:
            seen[name] = number


def _joined_lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are neither blank nor comments, with continuations joined.

    Each has the number of its first line. A backslash remains at the end only if the file ends with
    it.
    """
    # not splitlines(), which also splits at characters that are not line ends to editors
    numbered = enumerate(text.removesuffix("\n").split("\n"), 1)
    for number, physical in numbered:
        line = physical.strip()
        if not line or line[0] in "#!":
            continue
        while line.endswith("\\"):
            following = next(numbered, None)
            if following is None:
                break
            line = line[:-1] + following[1].strip()
        yield number, line
