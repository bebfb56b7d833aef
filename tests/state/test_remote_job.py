"""The place of a job at a URL: whose it is, and its tasks. Real file systems of fsspec."""

from __future__ import annotations

from pathlib import Path

import pytest

from s4node.errors import CheckpointError, ConfigError
from s4node.offsets.checkpoint import JobGuard
from s4node.state.remote_job import RemoteJob
from s4node.state.remote_task import RemoteTask


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_another_job_s_place_is_refused(kind: str, tmp_path: Path) -> None:
    depot = RemoteJob(f"{kind}://{tmp_path}/depot", Path("here/app"))
    depot.admit(JobGuard(4, "by-partition", "crc32m", {"log.clicks": 4}))
    depot.admit(JobGuard(4, "by-partition", "crc32m", {"log.views": 2}))
    with pytest.raises(CheckpointError, match=r"does not fit this job:\n- it had 4 tasks"):
        depot.admit(JobGuard(8, "by-partition", "crc32m", {"log.clicks": 4}))


def test_a_url_that_means_nothing_is_a_mistake_in_the_configuration() -> None:
    with pytest.raises(
        ConfigError, match=r"s4\.state\.url = nosuch://bucket: .*; fsspec knows abfs,"
    ):
        RemoteJob("nosuch://bucket", Path("here/app"))


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_shipment_is_of_one_task(kind: str, tmp_path: Path) -> None:
    depot = RemoteJob(f"{kind}://{tmp_path}/depot", Path("here/app"))
    one, other = depot.task("one"), depot.task("other")
    one.highest(), other.highest()
    one.claim(5, "origin", 1)
    assert (one.highest(), other.highest()) == (5, 0)
    assert isinstance(one, RemoteTask)
