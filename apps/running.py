"""Nodes for the demos: each in a process of its own, at a free port, stopped at the end.

A node that ends before its block raises Failed there, also if that was why something else failed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ANY_PORT = "tcp://127.0.0.1:0"


class Failed(Exception):  # noqa: N818 - a demo says so, and ends
    """A demo cannot go on, because a node has ended by itself, or for another reason."""


@dataclass(frozen=True)
class Running:
    """A node that was started with ``s4 WORDS``."""

    words: tuple[str, ...]
    address: str
    process: subprocess.Popen[bytes]

    def check(self) -> None:
        status = self.process.poll()
        if status is not None:
            how = f"ended with status {status}"
            if status < 0:
                how = f"was killed by {signal.Signals(-status).name}"
            raise Failed(f"s4 {' '.join(self.words[:2])} {how}; if it said why, that is above")


@contextmanager
def running(*words: str) -> Iterator[Running]:
    """Run ``s4 WORDS``, which starts a node; raises Failed if it ends before the block does."""
    values = (
        f"s4.listener.address={ANY_PORT}",
        "s4.logger_level=warning",
        "s4.logger_format=json",  # a line for each warning
    )
    settings = [word for value in values for word in ("-p", value)]
    process = subprocess.Popen(
        [sys.executable, "-m", "s4node", *words, "--json", *settings],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            process.wait(30)
        node = Running(words, json.loads(line)["address"] if line else "", process)
        try:
            node.check()
            yield node
        except Failed:
            raise
        except Exception as error:
            try:
                node.check()
            except Failed as failed:
                raise failed from error  # which is why the other has failed
            raise
        node.check()
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@contextmanager
def running_log(folder: Path) -> Iterator[Running]:
    """Run the node ``archive``, whose log and coordination are in ``folder``."""
    places = [f"s4.log.folder={folder / 'log'}", f"s4.coordination.folder={folder / 'nodes'}"]
    with running("node", "archive", "-p", places[0], "-p", places[1]) as node:
        yield node


def s4(*words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "s4node", *words], check=True, cwd=ROOT, stdout=subprocess.DEVNULL
    )
