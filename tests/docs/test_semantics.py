"""docs/semantics.md says nothing that a test does not prove."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from harness import ROOT, run_module
from semantics import (
    Guarantee,
    Outcomes,
    in_make_test,
    left_to_long_runs,
    missing,
    mistakes,
    read,
    unproven,
)

# -- the page -------------------------------------------------------------------------------------


def test_every_guarantee_names_a_test_or_says_not_yet() -> None:
    assert mistakes(GUARANTEES) == []


def test_the_page_has_all_its_groups() -> None:
    counted = {group: sum(g.id.startswith(f"{group}-") for g in GUARANTEES) for group in GROUPS}

    assert all(counted[group] >= GROUPS[group] for group in GROUPS), counted
    assert len(GUARANTEES) == sum(counted.values())


def test_every_test_that_the_page_names_exists() -> None:
    assert missing(GUARANTEES, ROOT) == []


def test_every_guarantee_keeps_a_test_that_make_test_runs() -> None:
    assert left_to_long_runs(GUARANTEES, ROOT) == []


@pytest.mark.parametrize(
    ("marks", "function", "runs"),
    [
        ("", "", True),
        ("pytestmark = pytest.mark.slow", "", True),
        ("pytestmark = [pytest.mark.slow, pytest.mark.long]", "", False),
        ("pytestmark = pytest.mark.long", "@pytest.mark.short", True),
        ("", "@pytest.mark.long", False),
    ],
)
def test_what_is_marked_long_is_left_out_unless_it_is_short_too(
    tmp_path: Path, marks: str, function: str, runs: bool
) -> None:
    (tmp_path / "test_a.py").write_text(f"{marks}\n{function}\ndef test_b():\n    pass\n")

    assert in_make_test(tmp_path, "test_a.py::test_b") is runs


# -- the judge ------------------------------------------------------------------------------------


def guarantee(*tests: str, promise: str = "kept", number: int = 1) -> Guarantee:
    return Guarantee(f"loop-{number:02}", "It goes.", promise, "It does.", tests)


@pytest.mark.parametrize(
    ("ended", "whole", "failed", "skipped"),
    [
        ({"passed"}, True, [], []),
        ({"passed"}, False, [], []),
        ({"failed"}, True, ["failed"], []),
        ({"failed"}, False, ["failed"], []),
        ({"passed", "failed"}, True, ["failed"], []),
        ({"expected to fail"}, True, ["expected to fail"], []),
        ({"skipped"}, True, [], ["was skipped"]),
        ({"passed", "skipped"}, True, [], ["was skipped"]),
        ({"failed", "skipped"}, True, ["failed"], []),
        (set(), True, ["did not run"], []),
        (set(), False, [], []),
    ],
)
def test_only_what_ran_and_passed_is_a_proof(
    ended: set[str], whole: bool, failed: list[str], skipped: list[str]
) -> None:
    outcomes = Outcomes(whole=whole, of={"tests/test_a.py::test_b": ended} if ended else {})

    told = unproven([guarantee("tests/test_a.py::test_b")], outcomes)

    line = "loop-01: tests/test_a.py::test_b "
    assert told == ([line + text for text in failed], [line + text for text in skipped])


def test_a_selected_test_that_never_ran_is_no_proof_in_a_part_of_the_suite() -> None:
    outcomes = Outcomes(selected={"tests/test_a.py::test_b"})

    failed, _ = unproven([guarantee("tests/test_a.py::test_b")], outcomes)

    assert failed == ["loop-01: tests/test_a.py::test_b did not run"]


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (guarantee("tests/a.py::test_b"), []),
        (guarantee(promise="not yet"), []),
        (guarantee(), ["loop-01: no test proves it"]),
        (
            guarantee("tests/a.py::test_b", promise="not yet"),
            ["loop-01: not yet, and yet it names tests/a.py::test_b"],
        ),
        (
            guarantee("tests/a.py::test_b", promise="perhaps"),
            ["loop-01: 'perhaps' is none of kept, stronger, different, not yet"],
        ),
        (guarantee("tests/a.py::test_b", number=2), ["loop-02: it is number 1 of its group"]),
    ],
)
def test_a_mistake_on_the_page_is_told(one: Guarantee, told: list[str]) -> None:
    assert mistakes([one]) == told


def test_a_page_is_read_as_it_is_written() -> None:
    page = """
| id | asked | | here |
|---|---|---|---|
| loop-01 | It goes. | **kept** | It does `a | b`. |

- loop-01: `tests/a.py::test_b`, `tests/c.py::test_d`
"""
    with pytest.raises(ValueError, match="line 4: 5 cells"):
        read(page)

    assert read(page.replace("a | b", "a")) == [
        Guarantee(
            "loop-01",
            "It goes.",
            "kept",
            "It does `a`.",
            ("tests/a.py::test_b", "tests/c.py::test_d"),
        )
    ]
    with pytest.raises(ValueError, match="no guarantee: loop-02"):
        read(page.replace("a | b", "a").replace("- loop-01", "- loop-02"))


def test_a_test_that_does_not_exist_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def test_b(): ...\nclass TestC:\n    def test_d(self): ...\n")

    named = ("a.py::test_b", "a.py::TestC::test_d", "a.py::test_c", "b.py::test_b")
    assert missing([guarantee(*named)], tmp_path) == [
        "loop-01: a.py::test_c does not exist",
        "loop-01: b.py::test_b does not exist",
    ]


PROOFS = """
| id | asked | | here |
|---|---|---|---|
| loop-01 | It goes. | **kept** | It does. |
| loop-02 | It stops. | **kept** | It does. |
| loop-03 | It waits. | **kept** | It does. |
| loop-04 | It ends. | **kept** | It does. |

- loop-01: `tests/test_a.py::test_one`
- loop-02: `tests/test_a.py::test_two`, `tests/test_gone.py::test_five`
- loop-03: `tests/test_z.py::test_three`, `tests/test_z.py::test_four`
- loop-04: `tests/test_a.py::test_six`
"""
TWO, FOUR, FIVE, SIX = (
    "loop-02: tests/test_a.py::test_two failed",
    "loop-03: tests/test_z.py::test_four failed",
    "loop-02: tests/test_gone.py::test_five did not run",
    "loop-04: tests/test_a.py::test_six did not run",
)
THREE = "loop-03: tests/test_z.py::test_three was skipped"


@pytest.mark.parametrize(
    ("jobs", "options", "told", "passes"),
    [
        pytest.param("0", [], [TWO, FIVE, THREE, FOUR, SIX], False, marks=pytest.mark.long),
        ("2", [], [TWO, FIVE, THREE, FOUR, SIX], False),
        ("0", ["-k", "one"], [], True),
        ("0", ["--deselect", "tests/test_a.py::test_two", "-k", "not four"], [THREE], True),
        ("0", ["tests/test_a.py", "tests/test_z.py::test_four"], [TWO, FOUR, SIX], False),
        pytest.param(
            "0",
            ["--ignore=tests/test_a.py", "--ignore=tests/test_gone.py"],
            [THREE, FOUR],
            False,
            marks=pytest.mark.long,
        ),
        pytest.param("0", ["-x", "tests/test_a.py"], [], False, marks=pytest.mark.long),
    ],
    ids=[
        "the whole suite",
        "the whole suite in two workers",
        "an expression",
        "a part",
        "paths",
        "without files",
        "until one fails",
    ],
)
async def test_a_session_is_judged_by_what_ran(
    options: list[str], told: list[str], passes: bool, jobs: str, tmp_path: Path
) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\ntestpaths = ["tests"]\n')
    helpers = ("flaky", "forkserver", "input_systems", "seeds_of_the_day", "semantics")
    for name in ("conftest.py", "flaky.toml", *(f"{helper}.py" for helper in helpers)):
        shutil.copy(ROOT / "tests" / name, tests)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "semantics.md").write_text(PROOFS)
    (tests / "test_a.py").write_text(
        "import pytest\n"
        "def test_one(): ...\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_two(n): assert n == 1\n"
    )
    (tests / "test_z.py").write_text(
        "import pytest\n"
        "def test_three(): pytest.skip('not here')\n"
        "@pytest.fixture\n"
        "def broken(): raise OSError\n"
        "def test_four(broken): ...\n"
    )
    session = ("-q", "-p", "no:cacheprovider", "-n", jobs, *options)
    done = await run_module("pytest", *session, cwd=tmp_path, deadline=240)
    lines = [line for line in done.stdout.splitlines() if line.startswith("loop-")]
    assert sorted(lines) == sorted(told), done.stdout
    assert (done.returncode == 0) is passes


# -- set-up ---------------------------------------------------------------------------------------


PAGE = (ROOT / "docs" / "semantics.md").read_text()
GUARANTEES = read(PAGE)
GROUPS = {
    "dispatch": 38,
    "loop": 38,
    "container": 40,
    "async": 30,
    "startpoint": 16,
    "once": 9,
    "power": 1,
    "save": 5,
    "sink": 5,
    "part": 5,
    "peer": 7,
    "http": 5,
    "time": 7,
}
"""How many sentences each of the five documents has at least, and the project's own groups."""
