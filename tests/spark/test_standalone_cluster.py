"""A cluster of Spark whose parts share nothing but a folder for stages."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from torture import machines

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]


def test_workers_on_two_machines_write_and_read_each_row_once_and_make_the_state_of_a_history(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if why := machines.impossible():
        pytest.skip(f"no machines can be made here: {why}")
    failed = machines.python_apart("-m", "spark_cluster", str(tmp_path))
    said = capfd.readouterr()
    assert not failed, said.out + said.err
    assert said.out.splitlines() == ["sink and source [1, 1]", "bootstrap [3, 3]", "exact"]
