"""Commands and processes load no library and no room at their start that they do not use."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import trio
from cli_apps import HELLO
from harness import environment, node_process

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

RUNTIME = {"s4node.runtime", "s4node.log", "s4node.app.app", "s4node.state.database", "rocksdict"}
OUTPUT = {"rich", "structlog"}
SERVING = {"s4node.cluster.node.supervisor_protocol"}
SENDING = {"pynng", "asyncio", "s4node.net.egress", "s4node.net.client"}
PACKING = {"cloudpickle", "packaging", "tomllib"}
RARE = {
    "pyspark",
    "fsspec",
    "kazoo",
    "h11",
    "numpy",
    "cryptography",
    "s4node.monitoring",
    "s4node.http",
}


def test_the_help_loads_neither_trio_nor_what_runs_apps() -> None:
    loaded = modules("from s4node.cli.main import main\nmain(['--help'])")
    assert not loaded & {"trio", "pynng", *RUNTIME, *OUTPUT, *PACKING, *RARE}


async def test_commands_that_look_send_and_read_load_only_the_client(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(HELLO)
    async with node_process("hello.py", cwd=tmp_path) as node:
        for command, status, unused in (
            (["status"], 0, SENDING),
            (["status", "--json"], 0, SENDING),
            (["top", "--count", "1"], 0, SENDING),
            (["send", "names", "--to", node.address], 0, {"s4node.deploy"}),
            (["tail", "nowhere", "--to", node.address], 1, set()),
        ):
            done = await trio.run_process(
                [sys.executable, "-c", COMMAND, *command],
                stdin=b'{"name": "joe"}\n',
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env=environment(),
            )
            assert done.returncode == status, done.stderr
            loaded = set(done.stderr.decode().splitlines()[-1].split())
            assert not loaded & {*RUNTIME, *OUTPUT, *PACKING, *RARE, *SERVING, *unused}, command


@pytest.mark.parametrize(
    ("module", "others"),
    [
        ("node_process", {"rich", *RUNTIME, *PACKING, *RARE}),
        ("serve", {"rich", "s4node.log", *PACKING, *RARE}),
        ("container_process", {"rich", "s4node.log", *PACKING, *RARE}),
    ],
)
def test_a_process_loads_no_room_of_another_one(module: str, others: set[str]) -> None:
    assert not modules(f"import s4node.process.{module}") & others


COMMAND = """
import sys
from s4node.cli.main import main
status = main()
print(*sys.modules, file=sys.stderr)
raise SystemExit(status)
"""


def modules(program: str) -> set[str]:
    code = f"{program}\nimport sys\nprint()\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env=environment(),
    )
    return set(done.stdout.splitlines()[-1].split())
