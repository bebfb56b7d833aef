"""The idle time of the process."""

from __future__ import annotations

from types import TracebackType

import trio

from s4node import clocks


class Rest(trio.abc.Instrument):
    """Measures, inside ``with``, how long trio waits for something to do.

    A busy machine or busy threads do not reduce that time, except while they hold Python's lock.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def before_io_wait(self, _: float) -> None:
        self._began = clocks.steady()

    def after_io_wait(self, _: float) -> None:
        self.seconds += clocks.steady() - self._began

    def __enter__(self) -> Rest:
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        trio.lowlevel.remove_instrument(self)
