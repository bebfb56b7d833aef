"""Pages of docs: their Python blocks as a file of tests, and what they say that commands print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from harness import environment


def run_blocks(page: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the blocks of a page in an empty folder."""
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (folder / "test_page.py").write_text("\n\n".join(blocks))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        env=environment(),
        check=False,
    )


def matches(told: list[str], printed: list[str]) -> bool:
    """A command has printed what was told, where three dots are any text."""
    patterns = [re.escape(line).replace(r"\.\.\.", ".+") for line in told]
    return len(printed) == len(told) and all(map(re.fullmatch, patterns, printed))
