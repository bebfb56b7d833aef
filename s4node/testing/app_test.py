"""AppTest: an app in memory, on a clock that the test moves.

Rules
- Every call returns when the app is idle: all events are processed, except those that wait for
  time, for room, or for the world outside.
- An error that stops a node's app is raised by the current call.
- An unknown name is an error with the known ones.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar, cast, overload

from s4node.app.app import App
from s4node.app.processing_element import ProcessingElement
from s4node.app.prototype import Prototype
from s4node.app.stream import OutputStream
from s4node.app.window_instances import WindowInstances
from s4node.errors import S4Error
from s4node.events.event import LIVE
from s4node.events.keys import Key
from s4node.offsets.system import OutputRecord
from s4node.runtime.task.pe_processor import PeProcessor
from s4node.runtime.task.stream_task_processor import StreamTaskProcessor
from s4node.runtime.task.task import Task
from s4node.testing.runtime import Runtime
from s4node.testing.sender import InputSender, LiveSender, Refused, Sender

A = TypeVar("A", bound=App)
P = TypeVar("P", bound=ProcessingElement)

_PATIENCE = 0.01
"""Real seconds between two looks at a condition."""


class StreamWatermark(NamedTuple):
    """No event of a stream that is older than ``time``, in seconds, is waited for; -inf if none is
    known. ``held_back_by`` is the source that holds it back; empty if there is none."""

    time: float
    held_back_by: str


class AppTest(Generic[A]):
    """Runs an app inside a test.

    ::

        with AppTest(app, partitions=4) as test:
            test.send("clicks", Click("joe"))
            assert test.state(Count, "joe").clicks == 1
            test.advance(seconds=10)
            assert test.output("results") == [Result("joe", 1)]

    ``app`` is an App or its class. ``parameters`` become ``app.parameters``; ``settings`` are other
    settings, by key and as text. An App that declares its graph in ``on_init`` can be run once:
    give the class, or a new object for each test. Leaving the ``with`` block stops the app in
    order: it processes waiting events, then ``on_close`` is called.
    """

    def __init__(
        self,
        app: A | type[A],
        *,
        partitions: int = 1,
        parameters: Mapping[str, object] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._first: A = app() if isinstance(app, type) else app
        self._class = app if isinstance(app, type) else None
        values = {"s4.cluster.partitions": str(partitions), **(settings or {})}
        values |= {f"s4.app.{name}": str(value) for name, value in (parameters or {}).items()}
        self._made = 0
        self._runtime = Runtime(self._make, values)
        self._state = "has not started; use 'with AppTest(...) as test:'"

    def _make(self) -> App:
        self._made += 1
        return self._class() if self._class is not None and self._made > 1 else self._first

    @property
    def app(self) -> A:
        """The app; another object after a :meth:`crash`."""
        return cast("A", self._runtime.app) if self._made else self._first

    def __enter__(self) -> AppTest[A]:
        if not self._state.startswith("has not started"):
            raise S4Error("an AppTest is used once; make a new one")
        self._state = "has stopped"
        self._runtime.set_up()
        self._state = ""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._state = "has stopped"
        try:
            if kind is None and not self._runtime.failed and not self._runtime.ended:
                self._runtime.stop()
        finally:
            self._runtime.close()

    # -- what a test does --------------------------------------------------------------------

    def send(self, stream: str, *events: Any, partition: int | None = None) -> None:
        """Send events from outside to an input stream, or right to an internal one, in order.

        They go to ``partition``, or to the partition of their key, or to each partition in turn. An
        input from a system has as many partitions as the app, numbered from 0. Refused events are
        in :attr:`refused`; events for which a blocking stage has no room stay in :meth:`waiting`.
        Raises EventError for a type that the stream does not carry.
        """
        self._running()
        self._sender(stream).send(events, partition)
        self._runtime.wait_idle()

    def advance_watermark(self, stream: str, time: float) -> None:
        """Say that no event sent to an input from now on is older than ``time``, in seconds.

        Less the lateness of the stream, that is: its watermark is ``time`` minus that at most.
        """
        self._running()
        sender = self._sender(stream)
        if not isinstance(sender, LiveSender):
            raise S4Error(f"{stream!r} is not an input to which programs send; send it an event")
        sender.report_time(time)
        self._runtime.advance(0.2)

    def end_input(self, stream: str, *, partition: int | None = None) -> None:
        """End an input that is read from a system for good, or one partition of it."""
        self._running()
        sender = self._input(stream)
        for number in range(sender.partitions) if partition is None else [partition]:
            sender.end_partition(number)
        self._runtime.wait_idle()

    def advance(self, seconds: float) -> None:
        """Move the clock, and run what falls due on the way, in the order of its time."""
        self._running()
        if seconds < 0:
            raise ValueError(f"advance({seconds}): time does not go back; give 0 or more seconds")
        self._runtime.advance(seconds)

    def overflow(self, stream: str) -> None:
        """Make the stream's stage full from now on, as if what follows it were stuck.

        The PEs of an input or internal stream get nothing more: events sent to an input wait at
        their sender, and while something waits on an internal stream no input is taken. For an
        output stream the consumer is stuck: the tasks, which could put on it, stop. ``pressure`` is
        1 and ``send_nowait`` raises WouldBlock.
        """
        self._running()
        self._known(stream)
        self._runtime.overflow(stream)

    def relieve(self, stream: str) -> None:
        """End an :meth:`overflow`: waiting events go on."""
        self._running()
        self._known(stream)
        self._runtime.relieve(stream)

    def fail(self, pe: str | type[ProcessingElement], key: Key | None, error: Exception) -> None:
        """Make a PE's instance raise at its next event, in place of its handler."""
        self._running()
        self._runtime.failures.plan(self._prototype(pe).name, key, error)

    def crash(self) -> None:
        """Kill the app's process, and start it again: it resumes from its last commit.

        No hook is called at that end. Senders from outside reconnect, for which the clock moves a
        little, and resend what had no verdict. Give AppTest the class of an app that declares its
        graph in ``on_init``.
        """
        self._running()
        self._runtime.crash()

    def wait(self, condition: Callable[[], object], seconds: float = 10) -> None:
        """Wait in real time for the world outside, such as a socket's peer."""
        self._running()
        deadline = time.monotonic() + seconds
        self._runtime.wait_idle()
        while not condition():
            self._runtime.world.give_time(_PATIENCE)
            self._runtime.wait_idle()
            if time.monotonic() > deadline:
                raise S4Error(f"the condition did not become true within {seconds:g} s")

    # -- what a test looks at ----------------------------------------------------------------

    @property
    def now(self) -> float:
        """The time in seconds; it begins at 0 and is what ``app.clock()`` returns."""
        return self._runtime.world.now if self._made else 0.0

    def output(self, stream: str) -> list[Any]:
        """All that the app has put on a stream so far, in order; also for internal streams."""
        self._known(stream)
        return list(self._runtime.put[stream])

    def take_output(self, stream: str) -> list[Any]:
        """The output since the last call of this method."""
        self._known(stream)
        kept = self._runtime.put[stream]
        taken = kept.copy()
        kept.clear()
        return taken

    def records(self, stream: str) -> list[OutputRecord]:
        """The records that are published of an output stream to a system, in order.

        Events come after their commit, so not before time has passed.
        """
        self._known(stream)
        system = getattr(self.app.streams[stream], "system", LIVE)
        if not isinstance(self.app.streams[stream], OutputStream) or system == LIVE:
            raise LookupError(f"{stream!r} does not lead to a system; look at output({stream!r})")
        return self._runtime.world.inputs.system(system).published.of(stream)

    @overload
    def state(self, pe: type[P], key: Key | None = None, *, partition: int | None = None) -> P: ...

    @overload
    def state(self, pe: str, key: Key | None = None, *, partition: int | None = None) -> Any: ...

    def state(
        self,
        pe: str | type[ProcessingElement],
        key: Key | None = None,
        *,
        partition: int | None = None,
    ) -> Any:
        """The PE's instance of ``key``, or a copy of the saved one if it is not in memory.

        Name the PE by its class, or by its name if several have that class. A singleton has the key
        None and an instance in each partition. This does not count as a use in the PE's cache.
        Raises LookupError if there is no instance.
        """
        prototype = self._prototype(pe)
        for task in self._runtime.tasks:
            if partition is None or task.partition == partition:
                found = self._state_of(task, prototype.name, key)
                if found is not None:
                    return found
        known = ", ".join(map(repr, self.keys(pe)[:10])) or "none"
        where = "" if partition is None else f" in partition {partition}"
        raise LookupError(f"{prototype.name} has no instance of key {key!r}{where}; known: {known}")

    def windows(self, pe: str | type[ProcessingElement], key: Key | None = None) -> list[Any]:
        """The instances of the key's open windows, the oldest window first."""
        name = self._prototype(pe).name
        found: list[Any] = []
        for task in self._runtime.tasks:
            instances = task.instances[name]
            if not isinstance(instances, WindowInstances):
                raise LookupError(f"{name} has no windows; look at its instances with state()")
            found += instances.of_key(key)
        return found

    def watermark(self, stream: str) -> StreamWatermark:
        """Up to which time the events of a stream have come, and which source holds that back.

        Of several tasks, it is that of the one which is least far.
        """
        self._known(stream)
        found = []
        for task in self._runtime.tasks:
            times = getattr(task.processor, "times", None)
            if times is None or not times.has_time(stream):
                raise LookupError(f"stream {stream!r} has no time, so it has no watermark")
            found.append(StreamWatermark(*times.watermark_of(stream)[1:]))
        return min(found)

    def late(self, pe: str | type[ProcessingElement]) -> int:
        """The number of events that came too late for their window."""
        name = self._prototype(pe).name
        homes = [task.instances[name] for task in self._runtime.tasks]
        return sum(each.late for each in homes if isinstance(each, WindowInstances))

    def task(self, partition: int = 0) -> Any:
        """The task that the factory of a TaskApp has made for a partition."""
        processor = self._runtime.tasks[partition].processor
        if not isinstance(processor, StreamTaskProcessor):
            raise S4Error(f"app {self.app.name!r} is not a TaskApp; look at its PEs with state()")
        return processor.task

    def committed(self, stream: str, partition: int = 0) -> int | None:
        """The offset at which a restart would resume an input from a system.

        None before the first commit of the partition's task.
        """
        return self._input(stream).progress(partition).committed

    @property
    def asked_to_stop(self) -> bool:
        """True if the tasks have asked for the end, or all their inputs have ended."""
        return self._runtime.container.parts.loop.stopped_itself

    @property
    def ignored(self) -> dict[str, int]:
        """The exceptions of tasks that were ignored, by class."""
        found: Counter[str] = Counter()
        for task in self._runtime.tasks:
            found += task.processor.ignored
        return dict(found)

    def keys(self, pe: str | type[ProcessingElement]) -> list[Key]:
        """The keys of the PE's instances, by partition and then as they came."""
        name = self._prototype(pe).name
        return [key for task in self._runtime.tasks for key in task.instances[name]]

    def waiting(self, stream: str) -> list[Any]:
        """Events that were sent and for which the stream's stage has no room yet."""
        return self._sender(stream).waiting

    @property
    def refused(self) -> list[Refused]:
        """Events that will not be processed, and why, stream by stream."""
        senders = self._runtime.senders.values()
        return [refused for sender in senders for refused in sender.refused]

    @property
    def unhandled(self) -> dict[str, int]:
        """The number of events without a handler, by ``PE:event type``."""
        return self._runtime.tasks[0].statistics().unhandled

    # -- inside ------------------------------------------------------------------------------

    def _running(self) -> None:
        state = "has failed" if self._runtime.failed else self._state
        if not state and self._runtime.ended:
            state = "has stopped by itself"
        if state:
            raise S4Error(f"app {self.app.name!r} {state}")

    def _state_of(self, task: Task, name: str, key: Key | None) -> object:
        """The instance of a key in memory, or its saved state, unless all is closed."""
        if self._runtime.ended or not isinstance(task.processor, PeProcessor):
            return dict.get(task.instances[name], key)
        return task.processor.instance_of(name, key)

    def _known(self, stream: str) -> None:
        if stream not in self.app.streams:
            known = ", ".join(self.app.streams) or "none"
            raise LookupError(f"app {self.app.name!r} has no stream {stream!r}; known: {known}")

    def _sender(self, stream: str) -> Sender:
        self._known(stream)
        if stream not in self._runtime.senders:
            raise S4Error(f"{stream!r} is an output stream; read it with output({stream!r})")
        return self._runtime.senders[stream]

    def _input(self, stream: str) -> InputSender:
        sender = self._sender(stream)
        if not isinstance(sender, InputSender):
            raise S4Error(f"{stream!r} is not read from a system; it has no offsets and no end")
        return sender

    def _prototype(self, pe: str | type[ProcessingElement]) -> Prototype:
        return prototype_of(self.app, pe)


def prototype_of(app: App, pe: str | type[ProcessingElement]) -> Prototype:
    """The prototype of an app with this name or class; raises LookupError if it is not one."""
    prototypes = [prototype for prototype, _ in app.prototypes.values()]
    if isinstance(pe, str):
        what, found = pe, [p for p in prototypes if p.name == pe]
    else:
        what, found = pe.__name__, [p for p in prototypes if p.cls.__mro__[1] is pe]
    if len(found) == 1:
        return found[0]
    names = ", ".join(p.name for p in found or prototypes) or "none"
    if found:
        raise LookupError(f"several PEs are a {what}: {names}; give the name of one")
    raise LookupError(f"app {app.name!r} has no PE {what!r}; known: {names}")
