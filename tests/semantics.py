"""Reads docs/semantics.md, and judges whether the tests that it names prove it.

Rules
- A guarantee is a row of a table whose first cell is an id. Its third cell is a promise in
  bold: kept, stronger, different or not yet.
- What is "not yet" names no test; everything else names at least one, in the list below its table.
- A test proves something if it ran in this session and passed, with all of its parameters. One that
  was skipped proves nothing, and is told.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

PROMISES = ("kept", "stronger", "different", "not yet")


@dataclass(frozen=True)
class Guarantee:
    """One row of the page."""

    id: str
    asked: str
    promise: str
    here: str
    tests: tuple[str, ...]


@dataclass
class Outcomes:
    """The results of this session by test function: its id without parameters."""

    selected: set[str] = field(default_factory=set)
    of: dict[str, set[str]] = field(default_factory=dict)
    whole: bool = False
    """The whole suite was asked for: no path, no expression left anything out."""
    files: frozenset[str] = frozenset()
    """Files that were asked for whole."""

    def judges(self, test: str) -> bool:
        """Whether the test should have run."""
        return self.whole or test.partition("::")[0] in self.files or test in self.selected

    def note(self, nodeid: str, outcome: str) -> None:
        """Take down how a test, or one set of its parameters, ended."""
        self.of.setdefault(function_of(nodeid), set()).add(outcome)


def function_of(nodeid: str) -> str:
    """A test's id without its parameters."""
    return nodeid.partition("[")[0]


def read(page: str) -> list[Guarantee]:
    """The guarantees of the page, in its order; raises ValueError where it is not well formed."""
    rows: list[tuple[str, str, str, str]] = []
    proofs: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(page.splitlines(), 1):
        if re.match(r"\| *[a-z]+-\d\d *\|", line):
            cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
            if len(cells) != 4:
                raise ValueError(f"line {number}: {len(cells)} cells; a guarantee has 4")
            rows.append((cells[0], cells[1], cells[2].strip("*"), cells[3]))
        elif proof := re.fullmatch(r"- ([a-z]+-\d\d): (.+)", line):
            if proof[1] in proofs:
                raise ValueError(f"line {number}: {proof[1]} has a second list of tests")
            proofs[proof[1]] = tuple(re.findall(r"`([^`]+)`", proof[2]))
    found = [Guarantee(*row, proofs.pop(row[0], ())) for row in rows]
    if proofs:
        raise ValueError(f"tests are listed for what is no guarantee: {', '.join(proofs)}")
    return found


def mistakes(guarantees: list[Guarantee]) -> list[str]:
    """The faults of the page by itself."""
    found = []
    counted: dict[str, int] = {}
    for one in guarantees:
        group, _, number = one.id.partition("-")
        counted[group] = counted.get(group, 0) + 1
        if int(number) != counted[group]:
            found.append(f"{one.id}: it is number {counted[group]} of its group")
        if one.promise not in PROMISES:
            found.append(f"{one.id}: {one.promise!r} is none of {', '.join(PROMISES)}")
        elif one.promise == "not yet" and one.tests:
            found.append(f"{one.id}: not yet, and yet it names {one.tests[0]}")
        elif one.promise != "not yet" and not one.tests:
            found.append(f"{one.id}: no test proves it")
    return found


def missing(guarantees: list[Guarantee], root: Path) -> list[str]:
    """The named tests that do not exist."""
    known: dict[str, set[str]] = {}
    found = []
    for one in guarantees:
        for test in one.tests:
            path = test.partition("::")[0]
            if path not in known:
                known[path] = functions_in(root / path)
            if test.partition("::")[2] not in known[path]:
                found.append(f"{one.id}: {test} does not exist")
    return found


def left_to_long_runs(guarantees: list[Guarantee], root: Path) -> list[str]:
    """The guarantees of which make test runs no test."""
    return [
        one.id
        for one in guarantees
        if one.tests and not any(in_make_test(root, test) for test in one.tests)
    ]


def in_make_test(root: Path, test: str) -> bool:
    """Return True if no mark leaves the test to make test-long."""
    path, _, name = test.partition("::")
    body: Sequence[ast.stmt] = _parsed(root / path).body
    marks = [_marks(node.value) for node in body if _is_pytestmark(node)]
    for part in name.split("::"):
        node = next(node for node in body if getattr(node, "name", "") == part)
        marks += map(_marks, node.decorator_list)
        body = node.body
    found = set().union(*marks)
    return "long" not in found or "short" in found


@cache
def _parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _is_pytestmark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"


def _marks(expression: ast.expr) -> set[str]:
    return set(re.findall(r"pytest\.mark\.(\w+)", ast.unparse(expression)))


def functions_in(file: Path) -> set[str]:
    """The tests that a file defines, those of its classes as ``Class::test``."""
    if not file.is_file():
        return set()
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            inner = (n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}::{function.name}" for function in inner}
    return {name for name in found if name.rpartition("::")[2].startswith("test_")}


def unproven(guarantees: list[Guarantee], outcomes: Outcomes) -> tuple[list[str], list[str]]:
    """Guarantees without their proof in this session: what failed or never ran; what was skipped.

    Of a session with a part of the suite only what was selected is judged.
    """
    failed, skipped = [], []
    for one in guarantees:
        for test in one.tests:
            ended = outcomes.of.get(test, set())
            if bad := ended - {"passed", "skipped"}:
                failed.append(f"{one.id}: {test} {' and '.join(sorted(bad))}")
            elif "passed" in ended and "skipped" not in ended:
                continue
            elif "skipped" in ended:
                skipped.append(f"{one.id}: {test} was skipped")
            elif outcomes.judges(test):
                failed.append(f"{one.id}: {test} did not run")
    return failed, skipped
