"""The saved instances of the windows of one prototype. Pure.

Rules
- A row is found by the key group, the start of the window, and the key. It has the end of the
  window, what was called on it, and the state of the instance.
- All windows that have not ended are read at the start, as they are in memory until they end. That
  is done in parts, so that nobody waits for all of it.
- The kind of windows is saved, too. Windows of another kind cannot go on as these, but those whose
  ``on_window`` has failed may. State of keys cannot go on as windows, nor the other way.
- A stream cannot lose its ``order="time"`` while events of it are held back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from s4node.app.in_order import IN_ORDER, HeldBack
from s4node.app.pe_codec import codec_in
from s4node.app.processing_element import ProcessingElement
from s4node.app.window_instances import FailedWindows, WindowInstances
from s4node.errors import StateError

if TYPE_CHECKING:
    from s4node.state.pe_store import SavedInstances
    from s4node.state.task_state import TaskState

_encode = msgspec.msgpack.Encoder().encode

KIND = "windows of "
"""Begins the name of the fact with the kind of windows of a PE."""


FAILED = " (failed)"
"""Ends the name of the table with the instances of a PE whose ``on_window`` has failed."""


class _Row(msgspec.Struct, array_like=True, gc=False):
    end: float
    until: float | None
    round: int
    again: bool
    state: bytes


_decode = msgspec.msgpack.Decoder(_Row).decode


def go_on(state: TaskState, name: str, saved: SavedInstances, kind: str | None) -> None:
    """Note the kind of windows of a prototype, or None.

    Raises StateError if the ``saved`` instances are of another one.
    """
    known = state.meta(KIND + name)
    if known == kind:
        return
    if saved.has_rows():
        was, wanted = (f"{each} windows" if each else "state of keys" for each in (known, kind))
        raise StateError(
            f"PE {name!r} has saved {was}, which cannot go on as {wanted}; keep the kind, or give "
            f"the PE another name (create_pe(..., name=))"
        )
    state.set_meta(KIND + name, kind)


def check_order(state: TaskState) -> None:
    """Raise StateError if events are held back for an order that the app no longer has.

    The PEs that the app has are set up in ``state``.
    """
    for name in state.unused():
        if name.endswith(IN_ORDER) and state.meta(KIND + name) and state.has_rows(name):
            stream = name.removesuffix(IN_ORDER)
            raise StateError(
                f"stream {stream!r} had order='time', and events of it are still held back, which "
                f"this version of the app would not process; run the version with order='time' "
                f"until none is held back (later events, or watermark(t) of their senders, release "
                f"them; s4_task_held_back counts them), then this one"
            )


class WindowCodec:
    """Saves the windows of ``instances`` in ``state``; ``restore`` those that are there."""

    def __init__(
        self, name: str, instances: WindowInstances | FailedWindows, state: TaskState
    ) -> None:
        self._codec = codec_in(state, name, instances.prototype.cls)
        self._instances = instances
        self._saved = instances.saver = state.saved_windows(name, self)
        if isinstance(instances, HeldBack):
            self._saved.held_back = instances
        options = instances.prototype.windows
        assert options is not None
        if not isinstance(instances, FailedWindows):
            go_on(state, name, self._saved, options.kind.text)

    def restore(self) -> Iterator[None]:
        instances = self._instances
        for place in self._saved.all_rows():
            instances.restore(self._restored(instances, *place))
            yield

    def _restored(self, instances: Any, at: bytes, start: float, key: Any, data: bytes) -> Any:
        instance: Any = instances.prototype.make(key, instances)
        instance._row = at
        try:
            row = _decode(data)
        except msgspec.MsgspecError as error:
            name = instances.prototype.name
            raise StateError(f"saved state of {name} {key!r} cannot be read: {error}") from error
        instance._span = start, row.end
        instance._until = -math.inf if row.until is None else row.until
        instance._round, instance._again = row.round, row.again
        self._codec.restore(instance, row.state)
        return instance

    def encode(self, instance: ProcessingElement) -> bytes:
        return _row_of(instance, self._codec.encode(instance))

    def encode_all(self, instances: list[ProcessingElement]) -> list[bytes]:
        return list(map(_row_of, instances, self._codec.encode_all(instances)))


def _row_of(instance: ProcessingElement, state: bytes) -> bytes:
    until = instance._until if instance._until > -math.inf else None
    return _encode((instance._span[1], until, instance._round, instance._again, state))
