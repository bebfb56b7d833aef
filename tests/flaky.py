"""Tries a test that failed again, and lets a known flaky test pass if that was chance.

Rules
- A test that has failed is run three times more, at once and in its place, so that the other
  workers go on and the load is that under which it failed.
- It passes if all three pass and ``flaky.toml`` has it. The session then names it, with the output
  of its first failure. More than two such tests fail the session.
- A test that passes three times and is not in the list has failed, and its report has the lines
  to add. An entry holds for fourteen days: by then the race is found.
- No second try is given to what does not fail by chance: a property, a seeded test, a test of pure
  code (a plain function that starts no process), and a test that the change has touched. Nor to
  a test that leaves a process behind, and to a worker that died or hangs.
"""

from __future__ import annotations

import datetime
import inspect
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from forkserver import forks

LIST = Path(__file__).with_name("flaky.toml")
DAYS = 14
TRIES = 3
MOST = 2

_KEY = "flaky"
_STARTS_PROCESSES = ("slow", "spark", "long")


@dataclass(frozen=True)
class Known:
    """An entry of the list: how a test failed first, and when."""

    failure: str
    seen: datetime.date

    def holds(self, today: datetime.date) -> bool:
        return (today - self.seen).days <= DAYS


def read(text: str) -> dict[str, Known]:
    entries = {}
    for entry in tomllib.loads(text).get("test", []):
        if set(entry) != {"name", "failure", "seen"} or not isinstance(
            entry["seen"], datetime.date
        ):
            raise ValueError(f"an entry has a name, a failure and a date, not {entry}")
        entries[entry["name"]] = Known(entry["failure"], entry["seen"])
    return entries


def changed_lines(diff: str) -> list[range]:
    """The lines of the new file that a diff without context adds or changes."""
    hunks = re.findall(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", diff, re.MULTILINE)
    return [range(int(first), int(first) + max(1, int(count or 1))) for first, count in hunks]


class Flaky:
    """Runs tests in a worker, or in the only process."""

    def __init__(self, known: dict[str, Known], root: Path) -> None:
        self._known = known
        self._root = root

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        function, before = getattr(item, "function", None), _children()  # pytest-trio replaces it
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        # the module's fixtures stay for the other tries
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        failure = next((report for report in reports if report.failed), None)
        if failure is not None and not (reason := self._certain(item, function, before)):
            for _ in range(TRIES):
                again = _again(item, nextitem)
                if any(report.failed for report in again):
                    break
            else:
                reports = self._judged(item, failure, reports, again)
        elif failure is not None:
            failure.sections.append(("not tried again", reason))
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _judged(
        self,
        item: pytest.Item,
        failure: pytest.TestReport,
        reports: list[pytest.TestReport],
        again: list[pytest.TestReport],
    ) -> list[pytest.TestReport]:
        """The reports of a test that has failed once and then passed each time."""
        known = self._known.get(item.nodeid)
        today = datetime.datetime.now(datetime.UTC).date()
        if known is not None and known.holds(today):
            for report in again:
                report.user_properties.append((_KEY, failure.longreprtext))
            return again
        if known is not None:
            advice = f"it has been listed since {known.seen}, which is more than {DAYS} days"
        else:
            lines = [line.strip(" |+-") for line in failure.longreprtext.splitlines()]
            last = [line for line in lines if line][-1]
            advice = (
                f"it passed {TRIES} times since; if this change did not cause it, add to "
                f"tests/{LIST.name}:\n\n[[test]]\nname = {_quoted(item.nodeid)}\n"
                f"failure = {_quoted(last)}\nseen = {today}"
            )
        failure.sections.append(("flaky", advice))
        return reports

    def _certain(self, item: pytest.Item, function: Any, before: frozenset[int]) -> str:
        """Return why the failure cannot be chance, or ''."""
        if item.get_closest_marker("hypothesis") or hasattr(function, "hypothesis"):
            return "a property fails for its input, not by chance"
        if any("seed" in name for name in getattr(item, "fixturenames", ())):
            return "a seeded test repeats itself"
        slow = any(item.get_closest_marker(name) for name in _STARTS_PROCESSES)
        if not slow and not inspect.iscoroutinefunction(function):
            return "a test of pure code repeats itself"
        if left := _children() - before - forks.pids:
            return f"it has left processes: {', '.join(map(str, sorted(left)))}"
        if self._touched(function):
            return "the change has touched it"
        return ""

    def _touched(self, function: Any) -> bool:
        """Return True if the change, or without one the last day, touches the function."""
        lines, first = inspect.getsourcelines(function)
        body = range(first, first + len(lines))
        base = base_of(self._root)
        diff = (
            _git(
                self._root, "diff", "--unified=0", base, "--", str(inspect.getsourcefile(function))
            )
            if base
            else ""
        )
        return any(
            part.start < body.stop and body.start < part.stop for part in changed_lines(diff)
        )


def base_of(root: Path) -> str:
    """The commit before the change: what ``origin/main`` has, else the newest from before today."""
    base = _git(root, "merge-base", "HEAD", "origin/main")
    if base and base != _git(root, "rev-parse", "HEAD"):
        return base
    return _git(root, "rev-list", "-1", "--before=24 hours ago", "HEAD")


class Tally:
    """Counts the flaky tests of a session, in the process that reports."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for key, text in report.user_properties:
            if key == _KEY:
                self.failures[report.nodeid] = str(text)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if len(self.failures) > MOST and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for name, text in self.failures.items():
            terminalreporter.section(f"FLAKY: {name}")
            terminalreporter.write_line(text)
        if len(self.failures) > MOST:
            terminalreporter.write_line(
                f"{len(self.failures)} flaky tests, more than {MOST}: failed"
            )
        for name in self.failures:
            terminalreporter.write_line(f"FLAKY: {name}")


def _again(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    item._initrequest()  # type: ignore[attr-defined]
    return runtestprotocol(item, nextitem=nextitem, log=False)


def _children() -> frozenset[int]:
    """The living processes that this one has started."""
    return frozenset(_living_children(os.getpid()))


def _living_children(parent: int) -> Iterator[int]:
    for thread in Path(f"/proc/{parent}/task").iterdir():
        try:
            yield from map(int, (thread / "children").read_text().split())
        except OSError:
            continue  # the thread has ended


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
