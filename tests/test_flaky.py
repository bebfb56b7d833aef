"""A known flaky test may fail once; whatever else fails, fails."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path

import pytest
from flaky import LIST, changed_lines, read
from semantics import functions_in

pytest_plugins = ["pytester"]

TODAY = datetime.datetime.now(datetime.UTC).date()
ROOT = LIST.parents[1]

FAILS_FIRST = """
from pathlib import Path

async def test_it(tmp_path_factory):
    ran = tmp_path_factory.getbasetemp() / "ran"
    times = int(ran.read_text()) if ran.exists() else 0
    ran.write_text(str(times + 1))
    assert times + 1 not in {fails}, f"run {{times + 1}}"
"""


def run(
    pytester: pytest.Pytester, test: str, *entries: tuple[str, datetime.date]
) -> pytest.RunResult:
    """The end of a session with the test and with these entries of the list."""
    known = [f"{name!r}: Known('once', date({seen:%Y, %-m, %-d}))" for name, seen in entries]
    pytester.makeini("[pytest]\ntrio_mode = true\nmarkers =\n    slow: starts processes")
    pytester.makeconftest(
        f"""
        from datetime import date
        from pathlib import Path
        from flaky import Flaky, Known, Tally

        def pytest_configure(config):
            config.pluginmanager.register(Flaky({{{", ".join(known)}}}, Path(__file__).parent))
            config.pluginmanager.register(Tally())
        """
    )
    pytester.makepyfile(test_once=test)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:randomly")


NAME = "test_once.py::test_it"


def test_a_listed_test_that_fails_at_its_first_run_only_is_named_and_passes(
    pytester: pytest.Pytester,
) -> None:
    result = run(pytester, FAILS_FIRST.format(fails={1}), (NAME, TODAY))

    result.assert_outcomes(passed=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*FLAKY: test_once.py::test_it*", "*AssertionError: run 1*"])
    result.stdout.fnmatch_lines([f"FLAKY: {NAME}"])


def test_a_test_that_fails_twice_has_failed_though_it_is_listed(pytester: pytest.Pytester) -> None:
    result = run(pytester, FAILS_FIRST.format(fails={1, 3}), (NAME, TODAY))

    result.assert_outcomes(failed=1)
    assert result.ret == 1


def test_a_test_that_is_not_listed_has_failed_and_its_report_has_the_entry(
    pytester: pytest.Pytester,
) -> None:
    result = run(pytester, FAILS_FIRST.format(fails={1}))

    result.assert_outcomes(failed=1)
    seen = f"seen = ({TODAY}|{TODAY + datetime.timedelta(days=1)})"  # midnight may have passed
    result.stdout.re_match_lines(
        ["it passed 3 times since", "name = .*test_once.py::test_it", seen]
    )


def test_an_entry_holds_for_fourteen_days(pytester: pytest.Pytester) -> None:
    old = TODAY - datetime.timedelta(days=15)

    run(pytester, FAILS_FIRST.format(fails={1}), (NAME, old)).assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("def test_it():\n    assert False", "a test of pure code repeats itself"),
        (
            (
                "import pytest\n@pytest.mark.parametrize('seed', [1])\n"
                "async def test_it(seed):\n    assert False"
            ),
            "a seeded test repeats itself",
        ),
        (
            (
                "from hypothesis import given\nfrom hypothesis.strategies import integers\n"
                "@given(integers())\ndef test_it(n):\n    assert False"
            ),
            "a property fails for its input, not by chance",
        ),
        (
            (
                "import os, pytest\n@pytest.mark.slow\n"
                "def test_it():\n"
                "    os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '3')\n"
                "    assert False"
            ),
            "it has left processes: *",
        ),
    ],
)
def test_what_cannot_fail_by_chance_is_not_tried_again(
    pytester: pytest.Pytester, test: str, reason: str
) -> None:
    result = run(pytester, test, (NAME, TODAY), (f"{NAME}[1]", TODAY))

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{reason}"])


def test_a_test_that_the_change_touches_is_not_tried_again(pytester: pytest.Pytester) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *identity, *arguments], cwd=pytester.path, check=True)

    before = "async def test_other():\n    pass\n\n"
    git("init", "-q")
    pytester.makepyfile(test_once=before)
    git("add", ".")
    git("commit", "-q", "-m", "before", "--date", "2020-01-01T00:00:00")
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    pytester.makepyfile(test_once=before + FAILS_FIRST.format(fails={1}))
    git("commit", "-q", "-a", "-m", "the change")

    result = run(pytester, before + FAILS_FIRST.format(fails={1}), (NAME, TODAY))

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*the change has touched it"])


def test_more_than_two_flaky_tests_fail_the_session(pytester: pytest.Pytester) -> None:
    test = FAILS_FIRST.format(fails={1}).replace("tmp_path_factory):", "tmp_path_factory, n):")
    test = test.replace('"ran"', 'f"ran{n}"').replace(
        "async def", "import pytest\n@pytest.mark.parametrize('n', [1, 2, 3])\nasync def"
    )

    result = run(pytester, test, *[(f"{NAME}[{n}]", TODAY) for n in (1, 2, 3)])

    assert result.ret == 1
    result.stdout.fnmatch_lines(["3 flaky tests, more than 2: failed"])


def test_a_diff_has_the_lines_that_it_adds_and_where_it_takes_some_away() -> None:
    diff = "@@ -1,2 +1,3 @@ a\n@@ -9 +10 @@\n@@ -20,3 +19,0 @@"

    assert changed_lines(diff) == [range(1, 4), range(10, 11), range(19, 20)]


def test_the_list_names_tests_that_are_there() -> None:
    for name, known in read(LIST.read_text()).items():
        path, _, function = name.partition("[")[0].partition("::")
        assert function in functions_in(ROOT / Path(path)), name
        assert known.failure


def test_an_entry_without_a_date_is_refused() -> None:
    with pytest.raises(ValueError, match="a name, a failure and a date"):
        read('[[test]]\nname = "a"\nfailure = "b"\n')
