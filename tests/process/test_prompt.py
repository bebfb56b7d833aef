"""Answers that a person waits for come at once, on a machine that does nothing else."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from cli_apps import HELLO
from harness import environment, node_process, s4
from shared_apps import Click, Count, Forward

from s4node import App
from s4node.testing import AppTest

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


@pytest.mark.parametrize(("grade", "most"), [("fast", 4), ("durable", 12)])
def test_a_test_of_an_app_costs_milliseconds(grade: str, most: int) -> None:
    """In turns of a bare loop, which take 3 to 6 ms each, as machines are not equally fast."""

    def turn() -> None:
        sum(n * n for n in range(100_000))

    def test_of_an_author() -> None:
        with AppTest(Passing, settings={"s4.stream.clicks.grade": grade}) as test:
            test.send("clicks", Click("joe"))
            assert test.state(Count, "joe").n == 1

    pairs = [(seconds_of(test_of_an_author), seconds_of(turn)) for _ in range(15)]
    tests, turns = zip(*pairs, strict=True)
    assert min(tests) < most * min(turns)


# -- set-up ---------------------------------------------------------------------------------------


def seconds_of(run: Callable[[], None]) -> float:
    began = time.process_time()
    run()
    return time.process_time() - began


class Passing(App):
    """clicks -> Forward -> users -> Count."""

    def on_init(self) -> None:
        forward = self.create_pe(Forward)
        forward.out = self.create_stream("users", self.create_pe(Count), key="user")
        self.create_input_stream("clicks", forward, key="user")
        self.create_output_stream("left-out", types=Click)
