"""Pages whose Python blocks, put together, are tests that pass."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from harness import ROOT, run_module

from s4node.net.wire.frame import WINDOW_BYTES
from s4node.runtime.task.schedule import SPAN


@pytest.mark.parametrize(
    ("page", "least"),
    [
        ("durable", 2),
        ("joins", 4),
        ("pes", 5),
        ("state", 3),
        ("tasks", 6),
        ("testing-apps", 8),
        ("tuning", 1),
        ("windows", 5),
    ],
)
async def test_the_blocks_of_a_page_are_tests_that_pass(
    page: str, least: int, tmp_path: Path
) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    tests = text.count("def test_")
    assert tests >= least

    done = await _run(text, tmp_path)

    assert done.returncode == 0, done.stdout
    assert f"{tests} passed" in done.stdout


def test_the_figures_of_the_page_about_durable_streams_are_those_of_the_code() -> None:
    assert (SPAN, WINDOW_BYTES) == (1.0, 64 << 20)


# -- set-up ---------------------------------------------------------------------------------------


async def _run(page: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the blocks of a page in an empty folder."""
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (folder / "test_page.py").write_text("\n\n".join(blocks))
    session = ("-q", "-W", "error", "-p", "no:cacheprovider")
    return await run_module("pytest", *session, cwd=folder, deadline=60)
