"""Errors, named by the cause.

Rules: this module imports nothing. A message states the fact, the value and the place, and ends
with the fix. An error is for what stops something; shedding, end of stream and "need more bytes"
are values.
"""

from __future__ import annotations


class S4Error(Exception):
    """The base of every error that s4node raises on purpose."""


class ConfigError(S4Error):
    """The configuration cannot be used; ``problems`` lists every mistake found, together."""

    def __init__(self, message: str, problems: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


class GraphError(S4Error):
    """The app's graph of streams and PEs cannot run; the message lists every mistake found."""


class FrameError(S4Error):
    """A frame or envelope breaks the wire format. Only its two subclasses are raised."""


class LocalFrameError(FrameError):
    """We were about to build a bad frame: a bug in s4node, or an event too large to send."""


class RemoteFrameError(FrameError):
    """The peer sent a bad frame: count it, answer it, keep the peer."""


class EventError(S4Error):
    """An event or an event type is not fit for its stream."""


class KeyFinderError(S4Error):
    """A KeyFinder raised, returned nothing, or returned what is not a key."""


class EventTimeError(S4Error):
    """The time of an event is missing, or is no time."""


class HeldBackBeyond(S4Error):  # noqa: N818
    """A task would hold back more events than it may. No event is left out for that."""


class ProcessingError(S4Error):
    """A PE's handler raised; ``__cause__`` is the user's own exception.

    Attributes name the place: ``app``, ``pe`` (class name), ``key`` (None if no instance was
    reached) and ``position`` (a text such as ``clicks[0]@spark-1:4711``). ``at`` has the event's
    batch and its index there; None if there was no event. ``call`` is that of a window or a timer
    that can be left out. An error that has neither, and is not ``of_event``, cannot be skipped.
    """

    at: tuple[object, int] | None = None
    call: object = None

    def __init__(
        self,
        app: str,
        pe: str,
        key: object,
        position: str,
        cause: BaseException,
        *,
        of_event: bool = True,
        call: object = None,
    ) -> None:
        place, leave_out = position, ""
        if of_event or call is not None:
            place = f"event at {position}" if of_event else position
            such = "events" if of_event else "calls"
            leave_out = (
                f", or have s4.stream.<stream>.onError skip such {such} (a live stream also needs "
                f"grade = durable)"
            )
        if isinstance(cause, NotRestorable):  # before any handler was called
            text = f"{cause.fact} (app {app!r}, {place}). The app stops here: {cause.fix}"
        else:
            text = (
                f"{pe} of app {app!r} raised {described(cause)}; "
                f"key {key!r}, {place}. The app stops here: {_fix_of('handler', pe, cause)}"
                f"{',' if leave_out else ' or'} catch the exception in it"
            )
        super().__init__(f"{text}{leave_out}")
        self.app = app
        self.pe = pe
        self.key = key
        self.position = position
        self.call = call
        self.__cause__ = cause


def _fix_of(what: str, cls: str, cause: BaseException) -> str:
    """The advice for an exception of a handler, or of another method of the app."""
    why, fix = described(cause), f"fix the {what}"
    _, undeclared, rest = why.partition(f"{cls!r} object has no attribute '")
    if isinstance(cause, AttributeError) and undeclared and what == "handler":
        name = rest.partition("'")[0]
        return f"{fix} (declare the state of a PE in its class, as '{name}: int = 0')"
    _, unannotated, rest = why.partition(f"{cls!r} object attribute '")
    name, _, fact = rest.partition("' is read-only")
    if isinstance(cause, AttributeError) and unannotated and not fact and what == "handler":
        return (
            f"{fix} (annotate the state of a PE in its class, as '{name}: int = 0'; without the "
            f"annotation it is the same for all instances)"
        )
    if isinstance(cause, RuntimeError) and "no running event loop" in why:
        return (
            f"{fix} (a node's loop is trio's, where calls of asyncio fail: use trio's, or have "
            f"process_async of a task pass the work to an asyncio loop in a thread)"
        )
    return fix


class MisplacedKey(ProcessingError):  # noqa: N818
    """An event of a routed topic is not in the partition of its key. It cannot be skipped."""

    def __init__(self, key: object, topics: str, found: int, expected: int) -> None:
        S4Error.__init__(
            self,
            f"the key {key!r} came in partition {found} of {topics}, but by murmur2 it belongs to "
            f"partition {expected}. Nothing of it was processed. Have all producers partition by "
            f"murmur2 of this key (librdkafka: partitioner = murmur2_random), or set "
            f"streams.<stream>.routed = false: events are then sent on to the tasks of their keys",
        )


class TaskError(ProcessingError):
    """A task's method raised; ``__cause__`` is the user's own exception.

    ``task`` and ``hook`` name them; ``position`` is empty if there was no event.
    """

    def __init__(
        self, app: str, task: str, hook: str, cls: str, position: str, cause: BaseException
    ) -> None:
        place = f"; event at {position}" if position else ""
        ignorable = hook in ("process", "process_async", "window", "timer")
        S4Error.__init__(
            self,
            f"{hook} of task {task!r} ({cls}) of app {app!r} raised {described(cause)}"
            f"{place}. The container stops here: {_fix_of('task', cls, cause)}, or catch the "
            f"exception in it"
            f"{', or name it in task.ignored.exceptions' if ignorable else ''}",
        )
        self.app = app
        self.pe = cls
        self.task = task
        self.hook = hook
        self.key = None
        self.position = position
        self.__cause__ = cause


class SourceError(S4Error):
    """A function started with ``start_soon`` raised; ``__cause__`` is the user's exception.

    Attributes name the place: ``app`` and ``source``, the function's name.
    """

    def __init__(self, app: str, source: str, cls: str, causes: list[BaseException]) -> None:
        more = f" (and {len(causes) - 1} more)" if len(causes) > 1 else ""
        super().__init__(
            f"source {source} of app {app!r} raised {described(causes[0])}{more}; the app stops "
            f"here: {_fix_of('source', cls, causes[0])}, or catch the exception in it"
        )
        self.app = app
        self.source = source
        self.__cause__ = causes[0]


class CallbackError(S4Error):
    """A task ended an event twice, or not in time; the message names task and event."""


class EventTimeout(CallbackError, ProcessingError):  # noqa: N818
    """An event was not ended within ``task.callback.timeout.ms``; ``position`` names it.

    If ``onError`` says so it is skipped, like an event on which a handler raises.
    """

    def __init__(self, app: str, task: str, position: str, seconds: float) -> None:
        self.fact = f"the event was not ended within {seconds:g} s (task.callback.timeout.ms)"
        S4Error.__init__(
            self,
            f"task {task!r} of app {app!r}: the event at {position} was not ended within "
            f"{seconds:g} s. The container stops here: call its callback in every case, raise "
            f"task.callback.timeout.ms, or have s4.stream.<stream>.onError skip such events",
        )
        self.app = app
        self.pe = ""
        self.key = None
        self.position = position


class ConnectionRefused(S4Error):  # noqa: N818 - the field's term, not exceptions' grammar
    """The peer refused this connection for good; the message has its reason.

    ``refused_as`` is the kind of it that the wire protocol has, or empty.
    """

    def __init__(self, message: str, refused_as: str = "") -> None:
        super().__init__(message)
        self.refused_as = refused_as


class StageClosed(S4Error):  # noqa: N818
    """You used this stage, stream or client after closing it."""


class StageBroken(S4Error):  # noqa: N818
    """The receiver of this stage is gone for good; the sender still has all unadmitted events.

    ``fact`` is the message without the ``advice``, its last sentence.
    """

    def __init__(self, fact: str, advice: str = "") -> None:
        super().__init__(f"{fact}. {advice}" if advice else fact)
        self.fact = fact


class SpillError(S4Error):
    """Events that have to be stored could not be written to disk; the app stops to lose none."""


class UnknownStream(S4Error):  # noqa: N818
    """No system, stream or partition of this name; the message lists the existing ones."""


class StartpointError(S4Error):
    """A startpoint means no offset of its input, or cannot be saved."""


class InputLost(S4Error):  # noqa: N818
    """The events to be read next were deleted: retention was faster than the reader."""


class EventsLost(S4Error):  # noqa: N818
    """A container has stopped and lost events. These are unacknowledged ones of output streams, or
    unprocessed ones of the app's own streams."""


class DecodeError(S4Error):
    """An event of an input does not decode, and the configuration says to stop at that."""


class StoreError(S4Error):
    """The files of a store cannot be used: in use by another process, or of another format."""


class StoreCorrupt(StoreError):  # noqa: N818
    """A file of a store is damaged; its content is not reliable."""


class LimitReached(StoreError):  # noqa: N818
    """A limit does not let a peer have more; it is counted."""


class SinkError(S4Error):
    """A batch of a sink cannot be staged or published; nothing of it is visible."""


class CheckpointError(S4Error):
    """Progress cannot be read or written, or does not fit the job that is to resume from it."""


class StateError(S4Error):
    """A key or value does not fit into a store, or a database cannot be used."""


class StateUnreachable(StateError):  # noqa: N818
    """The place for state does not answer, or is full; the same request may succeed later."""


class NotSaveable(StateError):  # noqa: N818
    """The instance of ``pe`` for ``key`` cannot be saved because of one of its attributes."""

    def __init__(self, pe: str, key: object, attribute: str, cause: BaseException) -> None:
        super().__init__(
            f"{pe} {key!r} cannot be saved: attribute {attribute!r}: {cause}. Assign only values "
            f"that can be saved (docs/state.md)"
        )
        self.pe = pe
        self.key = key


class NotRestorable(StateError):  # noqa: N818
    """The saved instance of ``pe`` for ``key`` cannot be restored.

    ``fact`` is the message without the ``fix``. If the class's ``migrate`` raised, ``__cause__`` is
    the user's own exception.
    """

    def __init__(self, pe: str, key: object, fact: str, fix: str) -> None:
        super().__init__(f"{fact}; {fix}")
        self.pe = pe
        self.key = key
        self.fact = fact
        self.fix = fix


class ProgressUnwritten(CheckpointError):  # noqa: N818
    """Progress could not be written for now: nothing was written, and it may be retried."""


class JobRuns(S4Error):  # noqa: N818
    """The request is only possible while no container of the job runs."""


class TaskFenced(S4Error):  # noqa: N818
    """Another container now owns this task; what this one does no longer counts."""


class ReceiverLost(S4Error):  # noqa: N818
    """A receiver of a task's output was lost; opening it again shows if its records are there."""


class MarkerError(S4Error):
    """A receiver's marker of a task contradicts the state of the task."""


class LifecycleError(S4Error):
    """A lifecycle listener, or an app's ``on_close``, raised; ``__cause__`` is that exception."""


class ContainerStopped(S4Error):  # noqa: N818
    """The container was stopped at once rather than in order. Never raised, only passed to
    listeners."""


class MetricError(S4Error):
    """A metric's name is used for two kinds of metrics."""


class WouldBlock(S4Error):  # noqa: N818
    """The ``_nowait`` call found no room; nothing was sent."""


class DeployFailed(S4Error):  # noqa: N818
    """The cluster does not run the new version; the old one, if any, still runs."""


class NodeUnreachable(S4Error):  # noqa: N818
    """A living node does not answer, or not what it was asked."""


class CoordinationError(S4Error):
    """The data that nodes share cannot be used, or a node or container may not join."""


class NoEntry(CoordinationError):  # noqa: N818
    """There is no entry at this path of the coordination's tree."""


class EntryExists(CoordinationError):  # noqa: N818
    """An entry exists at this path already; nothing was written."""


class EntryNotEmpty(CoordinationError):  # noqa: N818
    """The entry has entries below it; nothing was deleted."""


class BadVersion(CoordinationError):  # noqa: N818
    """Another process has changed this entry; nothing was written."""


class NameTaken(CoordinationError):  # noqa: N818
    """A node or member of this name already lives; the message says which."""


class SessionLost(CoordinationError):  # noqa: N818
    """The session has ended: others may own what it owned, and it can write no more."""


class PackageError(S4Error):
    """An app cannot be packaged, or a package cannot be read or run here."""


class FailedElsewhere(S4Error):  # noqa: N818
    """The app has failed in another process, with this traceback, or none, and exit status."""

    def __init__(self, message: str, trace: str, status: int) -> None:
        super().__init__(message)
        self.trace = trace
        self.status = status


class ContainerFailed(FailedElsewhere):
    """A container process does not run; has the reason."""

    def __init__(self, container: str, reason: str, trace: str, status: int) -> None:
        super().__init__(f"{container} does not run: {reason}", trace, status)
        self.reason = reason


def status_of(error: BaseException) -> int:
    """The exit status of a process that ends with ``error``: 2 if what it was given cannot run."""
    if isinstance(error, FailedElsewhere):
        return error.status
    return 2 if isinstance(error, (ConfigError, GraphError)) else 1


def described(error: BaseException) -> str:
    """An exception of user code as text: its class, and its message if that can be had."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return presentable(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def presentable(text: str) -> str:
    """A text of users without halves of surrogate pairs, which UTF-8 does not have: they are quoted
    as ``\\ud83d``. So it can be shown, stored and sent."""
    return text.encode(errors="backslashreplace").decode()


def on_one_line(text: str) -> str:
    """Foreign text, such as a reason, on one line: newlines and other characters that would move a
    terminal's cursor or change its colours are quoted, as ``\n``."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def unspillable(app: str, stream: str, why: EventError) -> SpillError:
    """The error for an event that has to wait on disk and cannot be encoded; stops the app."""
    return SpillError(
        f"an event of stream {stream!r} of app {app!r} has to wait on disk, because the stream "
        f"feeds itself and its stage is full, but it cannot be written: {why}. Check events before "
        f"you put them"
    )


def is_signal(error: BaseException) -> bool:
    """Return True if the exception asks code to end; also for groups that contain one.

    Any other exception of user code, even ``SystemExit``, is a failure of that code: an app's
    handler must not end a node.
    """
    return any(
        isinstance(leaf, (KeyboardInterrupt, GeneratorExit)) or _name(leaf) == "trio.Cancelled"
        for leaf in leaves(error)
    )


def _name(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__name__}"  # compared as text: no import of trio


def leaves(error: BaseException) -> list[BaseException]:
    """The exceptions inside nested groups, in order; ``[error]`` if it is not a group."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]
