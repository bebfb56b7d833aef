"""The times of commits: ten seconds a row, for ten minutes."""

from __future__ import annotations

from s4node.metrics.statistics import CommitStatistics
from s4node.runtime.commit.task_commit import CommitTimes


def test_commits_are_counted_by_ten_seconds_and_forgotten_after_ten_minutes() -> None:
    times = CommitTimes()
    times.ended(1003.0, 0.25, 100)
    times.ended(1009.9, 0.75, 50)
    times.ended(1010.0, 0.5, 1)

    first = CommitStatistics(1000, 2, 1.0, 0.75, 150)
    second = CommitStatistics(1010, 1, 0.5, 0.5, 1)
    assert times.recent(1015.0) == [first, second]
    assert times.recent(1605.0) == [second]
    assert times.recent(1700.0) == []
    assert (times.bytes, times.seconds) == (151, 1.5)
