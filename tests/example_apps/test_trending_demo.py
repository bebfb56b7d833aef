"""``make demo-trending``: windows of PEs over what Spark streams give the lists of Spark's own."""

from __future__ import annotations

import subprocess
import sys

import pytest
from harness import ROOT, environment

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]


def test_the_demo_ends_with_the_same_lists() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "apps.trending.demo"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Equal: all 1,130 places of 113 minutes" in done.stdout
