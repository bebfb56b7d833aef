"""Failures that a test plans: a PE's instance raises in place of its handler. Pure.

Rules
- The handlers of the app's prototypes are wrapped while the test runs and put back at its end, so
  an app at the top of a module is as it was.
- A wrapped handler stays plain or ``async``, because dispatch plans depend on it.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from typing import Any

from s4node.app.handlers import Handler, HandlerTable
from s4node.app.prototype import Prototype
from s4node.events.keys import Key


class Failures:
    """The errors that instances of an app's PEs raise next."""

    def __init__(self) -> None:
        self._planned: dict[tuple[str, Key | None], deque[Exception]] = {}
        self._wrapped: list[tuple[HandlerTable, dict[type, Handler]]] = []

    def plan(self, pe: str, key: Key | None, error: Exception) -> None:
        """Raise ``error`` at the next event of the PE's instance of ``key``."""
        self._planned.setdefault((pe, key), deque()).append(error)

    def wrap(self, prototype: Prototype) -> None:
        """Make the prototype's handlers raise what is planned."""
        table = prototype.on_event
        self._wrapped.append((table, table.declared))
        table.declared = {
            event_type: self._planning(prototype.name, handler)
            for event_type, handler in table.declared.items()
        }
        table.unhandled.clear()
        table.clear()

    def unwrap(self) -> None:
        """Put all handlers back."""
        for table, handlers in self._wrapped:
            table.declared = handlers
            table.clear()
        self._wrapped.clear()

    def _raise_planned(self, pe: str, key: Key | None) -> None:
        errors = self._planned.get((pe, key))
        if errors:
            raise errors.popleft()

    def _planning(self, pe: str, handler: Handler) -> Handler:
        failures = self

        if inspect.iscoroutinefunction(handler):

            @functools.wraps(handler)
            async def handle_async(instance: Any, event: Any) -> None:
                failures._raise_planned(pe, instance.key)
                await handler(instance, event)

            return handle_async

        @functools.wraps(handler)
        def handle(instance: Any, event: Any) -> Any:
            failures._raise_planned(pe, instance.key)
            return handler(instance, event)

        return handle
