"""The nodes of the demos: one that dies is named, and nothing is compared after that."""

from __future__ import annotations

from pathlib import Path

import pytest

from apps.running import Failed, running, running_log


def test_a_node_of_a_demo_that_dies_is_named_and_not_what_failed_because_of_it(
    tmp_path: Path,
) -> None:
    def demo() -> None:
        with running_log(tmp_path) as node:
            node.check()
            node.process.kill()
            node.process.wait()
            raise OSError("connection refused")

    with pytest.raises(Failed, match=r"s4 node archive was killed by SIGKILL; if it said") as told:
        demo()
    assert isinstance(told.value.__cause__, OSError)


def test_a_node_of_a_demo_that_does_not_start_is_named() -> None:
    with (
        pytest.raises(Failed, match=r"s4 run absent ended with status 2; if it said why"),
        running("run", "absent"),
    ):
        pass
