"""Answers that a person waits for come at once, on a machine that does nothing else."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
import trio
from cli_apps import HELLO
from harness import environment, node_process, s4

pytestmark = pytest.mark.long


async def test_a_node_that_is_idle_ends_within_a_second(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(HELLO)
    async with node_process("hello.py", cwd=tmp_path) as node:
        node.signal(signal.SIGTERM)
        began = trio.current_time()
        assert await node.wait() == 0
        assert trio.current_time() - began < 1


def test_the_help_is_there_within_three_tenths_of_a_second(tmp_path: Path) -> None:
    def once() -> float:
        began = time.perf_counter()
        subprocess.run(
            s4("--help"), check=True, capture_output=True, cwd=tmp_path, env=environment()
        )
        return time.perf_counter() - began

    assert min(once() for _ in range(5)) < 0.3


# -- set-up ---------------------------------------------------------------------------------------
