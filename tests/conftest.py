"""Shared by all tests: a system in memory, with the settings of a container that reads from it.

And notes which tests ran: when a session ends, docs/semantics.md is judged by them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import flaky
import pytest
import structlog
from forkserver import forks
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from input_systems import fresh
from seeds_of_the_day import seeds_of_the_day
from semantics import Outcomes, function_of, read, unproven

from s4node.process.stopping import SWITCH_SECONDS
from s4node.systems.memory import MemorySystem

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "semantics.md"
LONGEST = {
    "test_seeds_of_the_day.py",
    "test_clusters.py",
    "test_stream_task_processor.py",
    "test_progress_guarantees.py",
    "test_attacks_of_peers.py",
    "test_blocks.py",
}
"""Files that take half a minute and more; of the others, those with many slow tests do."""

# a busy machine must not make a true claim look false
hypothesis_settings.register_profile(
    "busy", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("busy")

# what these find wrong is told as well as what a test does
pytest.register_assert_rewrite(
    "conformance.coordination", "durable_lives", "net_simulation", "several_containers"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slice", type=int, help=f"run one of {Slice.PARTS} parts, the number modulo that"
    )


def pytest_report_header() -> str:
    seeds = seeds_of_the_day()
    return f"seeds of the day: {seeds.start} to {seeds.stop - 1}"


def pytest_configure(config: pytest.Config) -> None:
    if config.option.slice is not None:
        config.pluginmanager.register(Slice(config.option.slice % Slice.PARTS))
    if not hasattr(config, "workerinput"):  # the workers of a session report to it
        config.pluginmanager.register(Judge(config))
        config.pluginmanager.register(flaky.Tally())
    sys.setswitchinterval(SWITCH_SECONDS)  # as in the processes of nodes: commits starve else
    config.pluginmanager.register(flaky.Flaky(flaky.read(flaky.LIST.read_text()), ROOT))
    # whoever runs this may ignore what tests send to processes, as nohup does, and they inherit it
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            default = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that no worker is left with one."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: (item.path.name not in LONGEST, -slow[item.path]))


class Slice:
    """Runs one part of the selected tests, for three minutes at most."""

    PARTS = 40
    SECONDS = 180

    def __init__(self, part: int) -> None:
        self.part = part
        self.ends = time.monotonic() + self.SECONDS

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        first, end = (len(items) * part // self.PARTS for part in (self.part, self.part + 1))
        config.hook.pytest_deselected(items=items[:first] + items[end:])
        items[:] = items[first:end]

    def pytest_report_collectionfinish(self, items: list[pytest.Item]) -> list[str]:
        names = [item.nodeid for item in items] or ["nothing"]
        return [f"part {self.part} of {self.PARTS}: {names[0]} to {names[-1]}"]

    def pytest_runtest_setup(self) -> None:
        if time.monotonic() > self.ends:
            pytest.skip(f"the {self.SECONDS} s of this part are over")


class Judge:
    """Fails a session in which a test that the page names has failed, or was to run and has not."""

    def __init__(self, config: pytest.Config) -> None:
        parts = ("keyword", "markexpr", "deselect", "lf", "stepwise", "ignore", "ignore_glob")
        cut = any(config.getoption(name, None) for name in parts)
        by_name = config.args_source is pytest.Config.ArgsSource.ARGS
        self.outcomes = Outcomes(
            whole=not by_name and not cut,
            files=frozenset(map(_place, config.args)) if by_name and not cut else frozenset(),
        )
        self.failed: list[str] = []
        self.skipped: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._select([item.nodeid for item in items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self._select(ids)

    def _select(self, ids: Sequence[str]) -> None:
        self.outcomes.selected |= set(map(function_of, ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            outcome = "expected to fail" if hasattr(report, "wasxfail") else report.outcome
            self.outcomes.note(report.nodeid, outcome)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        cut_short = session.shouldstop or session.shouldfail or session.config.option.collectonly
        if not ended or cut_short:
            return
        try:
            self.failed, self.skipped = unproven(read(PAGE.read_text()), self.outcomes)
        except ValueError as error:
            self.failed = [str(error)]
        if self.failed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for what, lines in (("not proven", self.failed), ("skipped proofs", self.skipped)):
            if lines:
                terminalreporter.section(f"{PAGE.name}: {what}")
                for line in lines:
                    terminalreporter.line(line)


def _place(argument: str) -> str:
    """The path of a file that was named, as the page has it."""
    path = Path(argument).resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else argument


@pytest.fixture(scope="session", autouse=True)
def own_runtime_folder() -> Iterator[None]:
    """Processes of other tests, and those of whoever runs this, are not found."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def fork_server() -> Iterator[None]:
    """The process that forks ``s4`` for tests ends with them."""
    yield
    forks.close()


@pytest.fixture(autouse=True)
def unconfigured_logging() -> Iterator[None]:
    """Every test begins as a program that has not configured structlog: logs go to stderr."""
    yield
    structlog.reset_defaults()  # capture_logs configures, too


@pytest.fixture
def system(tmp_path: Path) -> MemorySystem:
    """A system of its own, which ``settings`` name."""
    return fresh(str(tmp_path))


@pytest.fixture
def settings(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """For a container that reads ``system`` from the beginning, with ``SETTINGS`` of the module."""
    more: dict[str, str] = getattr(request.module, "SETTINGS", {})
    return more | {
        "systems.memory.type": "input_systems:memory",
        "systems.memory.address": str(tmp_path),
        "systems.memory.samza.offset.default": "oldest",
        "s4.state.folder": str(tmp_path / "state"),
    }


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The Spark of this process, which can have one only. A task may fail three times."""
    pytest.importorskip("pyspark")
    from spark_rows import python_path

    from s4node.spark.java import spark_session

    before = dict(os.environ)
    python_path()
    with spark_session("tests", master="local[2,4]") as session:
        yield session
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that other users reach: pytest closes its own whenever any session begins."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB, where this process may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here (as root it can): a full one is not tested")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
