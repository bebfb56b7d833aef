"""What tests share: a system in memory, with the settings of a container that reads from it.

And notes which tests ran, for docs/semantics.md: the test that asks for it is the last to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from input_systems import fresh
from semantics import Outcomes, function_of

from s4node.systems.memory import MemorySystem

SEEN = pytest.StashKey[Outcomes]()
LAST = "tests/test_semantics.py::test_every_test_that_the_page_names_ran_and_passed"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SEEN] = Outcomes(
        whole=config.args_source is not pytest.Config.ArgsSource.ARGS
        and not config.option.keyword
        and not config.option.markexpr,
        left_out=frozenset(f"tests/{Path(each).name}" for each in config.option.ignore or ()),
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.nodeid == LAST)
    config.stash[SEEN].selected |= {function_of(item.nodeid) for item in items}


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        item.config.stash[SEEN].whole = False


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item):  # type: ignore[no-untyped-def]
    report = (yield).get_result()
    if report.when == "call" or not report.passed:
        outcome = "expected to fail" if hasattr(report, "wasxfail") else report.outcome
        item.config.stash[SEEN].note(item.nodeid, outcome)


@pytest.fixture
def outcomes(request: pytest.FixtureRequest) -> Outcomes:
    """What this session has shown so far."""
    return request.config.stash[SEEN]


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
def settings(tmp_path: Path) -> dict[str, str]:
    """For a container that reads ``system`` from the beginning."""
    return {
        "systems.memory.type": "input_systems:memory",
        "systems.memory.address": str(tmp_path),
        "systems.memory.samza.offset.default": "oldest",
        "s4.state.folder": str(tmp_path / "state"),
    }
