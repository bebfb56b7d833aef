"""Container processes under a supervisor: real processes, killed and stopped."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
import trio
from cli_apps import HELLO
from harness import ANY_PORT, DEADLINE, ROOT, environment, limited, plain_errors, until

from s4node import Client, GenericEvent
from s4node.cluster.node import supervisor_protocol
from s4node.cluster.node.package import SOURCES, Manifest, Package, Store, python_here
from s4node.cluster.node.restart_policy import Limits, Phase
from s4node.cluster.node.supervisor import ContainerProcess, Supervisor, supervising
from s4node.cluster.node.supervisor_protocol import Begin
from s4node.errors import ContainerFailed
from s4node.metrics.statistics import ContainerStatistics
from s4node.process.container_process import Line
from s4node.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.slow

ALONE = """
from importlib.util import find_spec
assert [name for name in ("clocks", "failpoints", "forks") if find_spec(name)] == []
"""


# -- living and ending ----------------------------------------------------------------------------


async def test_a_container_process_takes_events_and_sends_its_statistics(folder: Path) -> None:
    async with supervised() as supervisor:
        process = supervisor.start(begin(folder / "hello.py"))
        await greet(process)
        await until(lambda: (told := process.statistics) and told.inputs["names"].admitted == 1)
        assert process.prepared is not None
        assert process.prepared.inputs == ["names"]
        pid = process.pid
        await process.stop()
        assert not alive(pid)
        assert process.failure is None
        assert supervisor.processes == []


async def test_a_container_finds_the_package_s_modules_by_their_full_names_only(
    folder: Path,
) -> None:
    (folder / "hello.py").write_text(HELLO + ALONE)
    async with supervised() as supervisor:
        process = supervisor.start(begin(folder / "hello.py"))
        await process.wait_ready()
        await process.stop()


async def test_statistics_that_a_socket_does_not_take_at_once_arrive_in_time(folder: Path) -> None:
    what = begin(folder / "many.py", s4_cluster_partitions="400")
    what = msgspec.structs.replace(what, pulse_seconds=2.0)
    async with supervised(Limits(pulse=10)) as supervisor:
        process = supervisor.start(what)
        await process.wait_ready()
        with trio.fail_after(8):  # one socket's buffer with each pulse would take longer
            await until(lambda: process.statistics)
        assert len(msgspec.json.encode(process.statistics)) > 5 * 212_992
        assert process.starts == 1
        await process.stop()


@pytest.mark.long
async def test_pulses_come_as_often_as_the_timeout_asks_for(folder: Path) -> None:
    what = msgspec.structs.replace(begin(folder / "hello.py"), pulse_seconds=1.0)
    async with supervised(Limits(pulse=0.8)) as supervisor:
        process = supervisor.start(what)
        await process.wait_ready()
        for _ in range(8):  # 1.6 seconds
            last = process.statistics
            await until(lambda last=last: process.statistics is not last)
        assert process.starts == 1
        await process.stop()


async def test_statistics_over_the_length_of_a_line_are_left_out_and_the_pulse_comes() -> None:
    near, far = socket.socketpair()
    line, lines = Line(far), supervisor_protocol.Lines()
    heard: list[supervisor_protocol.FromContainer] = []
    end = trio.SocketStream(trio.socket.from_stdlib_socket(near))
    async with end, trio.open_nursery() as nursery:
        nursery.start_soon(line.carry)
        for size in (supervisor_protocol.MAX_LINE_BYTES, supervisor_protocol.MAX_LINE_BYTES - 999):
            line.pulse(ContainerStatistics(app="x" * size))
            line.say(supervisor_protocol.Done())
            with trio.fail_after(DEADLINE):
                while not heard or not isinstance(heard[-1], supervisor_protocol.Done):
                    heard += map(
                        supervisor_protocol.from_container, lines.feed(await end.receive_some())
                    )
            (pulse, _), heard = heard, []
            assert isinstance(pulse, supervisor_protocol.Pulse)
            assert bool(pulse.statistics) == (size < supervisor_protocol.MAX_LINE_BYTES)
        nursery.cancel_scope.cancel()
    far.close()


@pytest.mark.parametrize(
    "part", ["hello", pytest.param("tasks", marks=pytest.mark.long)]
)  # the place of the job, and of its tasks
async def test_one_that_waits_at_its_start_for_the_place_of_its_state_says_so(
    folder: Path, part: str
) -> None:
    store = {"s4_state_folder": str(folder / "state"), "s4_state_url": (folder / "url").as_uri()}
    what = begin(folder / "hello.py", s4_stream_names_grade="durable", **store)
    async with supervised() as supervisor:
        first = supervisor.start(what)
        await first.wait_ready()
        await first.stop()
        (place,) = (folder / "url").rglob(part)
        aside = place.rename(place.with_name("aside"))
        place.touch()  # it gives errors
        process = supervisor.start(what)
        await until(lambda: (told := process.statistics) and told.replay.failing)
        assert process.statistics is not None
        assert "cannot be read" in next(iter(process.statistics.replay.failing.values()))
        assert process.address == ""
        place.unlink()
        aside.rename(place)
        await greet(process)
        await until(lambda: (told := process.statistics) and not told.replay.failing)
        assert process.starts == 1
        await process.stop()


async def test_a_stop_waits_until_the_app_has_closed(folder: Path) -> None:
    closed = folder / "closed"
    what = begin(folder / "slow_end.py", s4_app_file=str(closed), s4_app_seconds="0.2")
    async with supervised() as supervisor:
        process = supervisor.start(what)
        await process.wait_ready()
        await process.stop()
        assert closed.read_text() == "closed"


async def test_one_that_does_not_end_in_time_is_killed(folder: Path) -> None:
    closed = folder / "closed"
    what = begin(folder / "slow_end.py", s4_app_file=str(closed), s4_app_seconds="3600")
    async with supervised(Limits(drain=1)) as supervisor:
        process = supervisor.start(what)
        await process.wait_ready()
        pid = process.pid
        await process.stop()
        assert not alive(pid)
        assert closed.read_text() == "closing"
        assert process.failure is not None
        assert process.failure.error == "had not drained within 1 s"


async def test_one_that_still_starts_is_stopped_too(folder: Path) -> None:
    async with supervised() as supervisor:
        process = supervisor.start(begin(folder / "hello.py"))
        await until(lambda: process.pid)
        pid = process.pid
        await process.stop()
        assert not alive(pid)


# -- crashes --------------------------------------------------------------------------------------


async def test_a_killed_container_is_started_again_and_serves(folder: Path) -> None:
    async with supervised() as supervisor:
        process = supervisor.start(begin(folder / "hello.py"))
        await greet(process)
        before = process.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        await until(lambda: process.starts == 2 and process.address)
        assert process.pid != before
        await greet(process)


async def test_a_stopped_container_is_killed_and_started_again(folder: Path) -> None:
    async with supervised(Limits(pulse=1, pause=0.05)) as supervisor:
        process = supervisor.start(begin(folder / "hello.py"))
        await process.wait_ready()
        before = process.pid
        assert before is not None
        os.kill(before, signal.SIGSTOP)
        await until(lambda: process.starts == 2 and process.address)
        assert not alive(before)
        await greet(process)


async def test_a_container_whose_loop_is_blocked_is_killed_and_started_again(folder: Path) -> None:
    async with supervised(Limits(pulse=1, pause=0.05)) as supervisor:
        process = supervisor.start(begin(folder / "stuck.py"))
        async with Client(await process.wait_ready()) as client:
            stream = await client.stream("names")
            await stream.send(GenericEvent(name="joe"))
            before = process.pid
            await until(lambda: process.starts == 2)
            assert not alive(before)
            client.abandon()
        await process.stop()


@pytest.mark.long
async def test_one_that_crashes_again_and_again_is_started_less_and_less_often(
    folder: Path,
) -> None:
    (folder / "broken.py").write_text(HELLO + "1 / 0\n")
    async with supervised() as supervisor:
        process = supervisor.start(begin(folder / "broken.py"))
        await until(lambda: process.starts == 4)
        assert process.phase in (Phase.STARTING, Phase.WAITING)
        await process.stop()


async def test_one_that_cannot_be_started_is_tried_again_and_the_others_run_on(
    folder: Path,
) -> None:
    slow = begin(folder / "slow_end.py")
    async with supervised() as supervisor:
        well = supervisor.start(begin(folder / "hello.py"))
        await well.wait_ready()
        pid = well.pid
        with limited(resource.RLIMIT_NOFILE, 0):
            ill = supervisor.start(slow)
            with pytest.raises(ContainerFailed, match=r"it cannot be started: .* open files"):
                await ill.wait_ready()
            await until(lambda: ill.starts == 3)
        await until(lambda: ill.phase is Phase.STARTING)
        await ill.wait_ready()
        assert (well.pid, well.starts) == (pid, 1)
        await greet(well)


@pytest.mark.parametrize(
    ("name", "text", "error", "trace"),
    [
        ("raises", "1 / 0\n", "cannot be loaded: ZeroDivisionError: division by zero", "1 / 0"),
        ("syntax", "def\n", "syntax.py:1: invalid syntax", ""),
        ("empty", "x = 1\n", "no App object and no App class", ""),
        ("graph", HELLO + "app.create_input_stream('names')\n", "has a stream 'names' already", ""),
        (
            "init",
            "from s4node import App\nclass A(App):\n    def on_init(self): self.missing()\n",
            "on_init of app 'init' raised AttributeError",
            "self.missing()",
        ),
        (
            "exits",
            "raise SystemExit(3)\n",
            "SystemExit: 3",
            "raise SystemExit(3)",
        ),
    ],
)
async def test_why_it_does_not_run_is_told_with_the_app_s_own_lines(
    folder: Path, name: str, text: str, error: str, trace: str
) -> None:
    file = folder / f"{name}.py"
    file.write_text(text)
    async with supervised() as supervisor:
        process = supervisor.start(begin(file))
        with pytest.raises(ContainerFailed) as caught:
            await process.wait_ready()
        await process.stop()
    assert error in str(caught.value)
    assert trace in caught.value.trace
    assert "/s4node/" not in caught.value.trace


async def test_one_that_exits_without_a_word_is_told_by_its_status(folder: Path) -> None:
    (folder / "mute.py").write_text("import os\nos._exit(7)\n")
    async with supervised() as supervisor:
        process = supervisor.start(begin(folder / "mute.py"))
        with pytest.raises(ContainerFailed, match="it ended with exit status 7"):
            await process.wait_ready()
        await process.stop()


# -- nobody is left behind ------------------------------------------------------------------------

LAUNCHER = """\
import msgspec, sys, trio
from s4node.cluster.node.supervisor_protocol import Begin
from s4node.cluster.node.restart_policy import Limits
from s4node.cluster.node.supervisor import supervising
async def main(begin):
    async with supervising(Limits()) as supervisor:
        for name in ("a", "b"):
            folder = f"{begin.folder}-{name}"
            supervisor.start(msgspec.structs.replace(begin, member=name, folder=folder))
        for process in supervisor.processes:
            await process.wait_ready()
            print(process.pid, process.address, flush=True)
        await trio.sleep_forever()
trio.run(main, msgspec.json.decode(sys.argv[1], type=Begin))
"""


@asynccontextmanager
async def launcher(file: Path) -> AsyncIterator[tuple[trio.Process, list[int], list[str]]]:
    """A process with a supervisor of two containers: it, their pids and their addresses."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", LAUNCHER, msgspec.json.encode(begin(file, task_shutdown_ms="500"))],
        stdout=-1,
        env=environment(),
        cwd=ROOT,
        start_new_session=True,
    )
    assert process.stdout is not None
    text = b""
    pids: list[int] = []
    try:
        with trio.fail_after(DEADLINE):
            while text.count(b"\n") < 2:
                text += await process.stdout.receive_some()
        lines = [line.split() for line in text.decode().splitlines()]
        pids = [int(pid) for pid, _ in lines]
        yield process, pids, [address for _, address in lines]
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            await process.stdout.aclose()
            for pid in filter(alive, pids):
                os.kill(pid, signal.SIGKILL)


async def test_containers_of_a_killed_supervisor_end_by_themselves(folder: Path) -> None:
    async with launcher(folder / "hello.py") as (process, pids, _):
        process.kill()
        await process.wait()
        await until(lambda: not any(map(alive, pids)))


@pytest.mark.long
async def test_a_stuck_container_of_a_killed_supervisor_ends_by_itself(folder: Path) -> None:
    async with launcher(folder / "stuck.py") as (process, pids, addresses):
        with trio.move_on_after(0.5):
            async with Client(addresses[0]) as client:
                stream = await client.stream("names")
                await stream.send(GenericEvent(name="joe"))
                await stream.flush()
        process.kill()
        await process.wait()
        await until(lambda: not any(map(alive, pids)))


async def test_an_interrupted_supervisor_leaves_nobody(folder: Path) -> None:
    async with launcher(folder / "hello.py") as (process, pids, _):
        process.send_signal(signal.SIGINT)
        await process.wait()
        assert not any(map(alive, pids))


@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_what_a_container_has_started_ends_with_it(folder: Path, how: str) -> None:
    file = folder / "started.txt"
    async with supervised() as supervisor:
        process = supervisor.start(begin(folder / "parent.py", s4_app_file=str(file)))
        await process.wait_ready()
        child = int(file.read_text())
        assert alive(child)
        if how == "killed":
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            await until(lambda: not alive(child))
        await process.stop()
        await until(lambda: not alive(child))


# -- set-up ---------------------------------------------------------------------------------------


# one that says when it drains, and holds the process up for as long as its parameter says
SLOW_END = """\
import trio
from pathlib import Path
from s4node import App, ProcessingElement
class Hello(ProcessingElement):
    def on_event(self, event): pass
class Slow(App):
    def on_init(self):
        self.create_input_stream("names", self.create_pe(Hello), key="name")
    async def on_close(self):
        Path(self.parameters["file"]).write_text("closing")
        await trio.sleep(float(self.parameters["seconds"]))
        Path(self.parameters["file"]).write_text("closed")
"""

# one whose statistics are more than a socket takes at once
MANY = """\
from s4node import App, ProcessingElement
class Hello(ProcessingElement):
    def on_event(self, event): pass
class Many(App):
    def on_init(self):
        for n in range(13):
            self.create_input_stream(f"names{n}", self.create_pe(Hello), key="name")
"""

PARENT = """\
import subprocess
from pathlib import Path
from s4node import App, ProcessingElement
class Hello(ProcessingElement):
    def on_event(self, event): pass
class Parent(App):
    def on_init(self):
        self.create_input_stream("names", self.create_pe(Hello), key="name")
        child = subprocess.Popen(["sleep", "3600"])
        Path(self.parameters["file"]).write_text(str(child.pid))
"""

STUCK = """\
import time
from s4node import App, ProcessingElement
class Stuck(ProcessingElement):
    def on_event(self, event): time.sleep(3600)
app = App("stuck")
app.create_input_stream("names", app.create_pe(Stuck), key="name")
"""

LIMITS = Limits(start=20, pulse=10, drain=20, pause=0.05, longest_pause=0.4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = {"hello": HELLO, "slow_end": SLOW_END, "many": MANY, "stuck": STUCK, "parent": PARENT}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def begin(file: Path, **settings: str) -> Begin:
    given = {"s4.listener.address": ANY_PORT, "s4.logger_level": "warning"}
    given |= {name.replace("_", "."): value for name, value in settings.items()}
    name, sources = file.stem, {SOURCES + file.name: file.read_bytes()}
    made = Manifest(
        name=name,
        version="1",
        kind="source",
        entry=file.name,
        python=python_here(),
        s4node=__version__,
    )
    digest = Store(file.parent / "store").put(Package(made, sources).encode())
    return Begin(
        name,
        f"{name}-1",
        given,
        package=str(file.parent / "store" / f"{digest}.zip"),
        digest=digest,
        folder=str(file.parent / name),
        pulse_seconds=0.1,
    )


@asynccontextmanager
async def supervised(limits: Limits = LIMITS) -> AsyncIterator[Supervisor]:
    with plain_errors(), trio.fail_after(2 * DEADLINE):
        async with supervising(limits) as supervisor:
            yield supervisor


def alive(pid: int | None) -> bool:
    """Whether the process runs; one that has ended and was not waited for does not."""
    assert pid is not None
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def greet(process: ContainerProcess) -> None:
    """Send one event, and have it processed."""
    async with Client(await process.wait_ready()) as client:
        stream = await client.stream("names")
        await stream.send(GenericEvent(name="joe"))
        await stream.flush()
