"""Events, PEs and apps that tests share, so that a test module begins with its first claim.

The PEs handle clicks. An app of another type, or with a handler of its own, is an ``OnePE`` of a
function. What the PEs of an app have seen is kept in the app, so it is that of one life.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import trio

from s4node import App, Event, OutputStream, ProcessingElement, Stream
from s4node.app.processing_element import ElementType


class Click(Event):
    user: str
    n: int = 0
    text: str = ""


class Buy(Event):
    user: str
    cents: int = 0


class Total(Event):
    user: str
    n: int


class Ignore(ProcessingElement):
    def on_event(self, event: Click) -> None: ...


class Count(ProcessingElement):
    n: int = 0

    def on_event(self, event: Click) -> None:
        self.n += 1


class Forward(ProcessingElement):
    out: Stream | OutputStream

    def on_event(self, event: Click) -> None:
        self.out.put(event)


COUNTER = """\
import os
from s4node import App, Event, ProcessingElement
class Click(Event):
    user: str
class Count(ProcessingElement):
    clicks: int = 0
    def on_event(self, click: Click):
        self.clicks += 1
        print(os.getpid(), self.key, self.clicks)
app = App("counter")
app.create_input_stream("clicks", app.create_pe(Count), key="user")
"""
"""The module of an app that counts clicks by user, and prints its process and each count."""

KEEPER = """from s4node import App, GenericEvent, ProcessingElement

class Ignore(ProcessingElement):
    def on_event(self, event: GenericEvent) -> None:
        pass

app = App("keeper")
app.create_input_stream("ignored", app.create_pe(Ignore), key="id")
"""
"""The module of an app whose node is there for its log."""

VICTIM = """
from s4node import App, Event, GenericEvent, ProcessingElement

class Click(Event):
    user: str
    n: int = 0

class Pair(Event):
    a: int
    b: int

class Clicks(ProcessingElement):
    n: int = 0
    def on_event(self, event: Click):
        if event.user == "healthy":
            self.n += 1
            if event.n < 0:
                print("counted", self.n)

class Pairs(ProcessingElement):
    n: int = 0
    def on_event(self, event: Pair):
        self.n += 1

class Anything(ProcessingElement):
    n: int = 0
    def on_event(self, event: GenericEvent):
        self.n += 1

app = App("victim")
app.create_input_stream("clicks", app.create_pe(Clicks), key="user")
app.create_input_stream("pairs", app.create_pe(Pairs), key=["a", "b"])
app.create_input_stream("anything", app.create_pe(Anything), key="user")
"""
"""The module of an app that peers attack. It prints what the user "healthy" has sent when that
user asks, with a number below 0."""


def pe_class(name: str = "PE", /, **body: Any) -> type[Any]:
    """A PE class with these methods; other values are state, each of the type of its default."""
    for word, value in body.items():
        if inspect.isfunction(value):
            value.__name__ = word
    state = {
        word: type(value)
        for word, value in body.items()
        if not (word.startswith("on_") or callable(value) or isinstance(value, staticmethod))
    }
    return ElementType(name, (ProcessingElement,), {"__annotations__": state, **body})


def handler_of(
    types: Any, handler: Callable[[Any, Any], Any] = lambda _pe, _event: None
) -> Callable[[Any, Any], Any]:
    """A method for events of these types: a function of the instance and the event, plain or
    async."""
    if inspect.iscoroutinefunction(handler):

        async def on_event(self: Any, event: Any) -> None:
            await handler(self, event)

    else:

        def on_event(self: Any, event: Any) -> Any:  # type: ignore[misc]
            return handler(self, event)

    on_event.__annotations__["event"] = types
    return on_event


def handling(handler: Callable[[Any, Any], Any], types: Any = Click) -> type[ProcessingElement]:
    """A PE whose ``on_event`` is a function of the instance and the event, plain or async."""
    return pe_class("Handling", on_event=handler_of(types, handler))


def counting(
    types: Any = Click,
    then: Callable[[Any, Any], Any] = lambda _pe, _event: None,
    *,
    name: str = "Count",
) -> type[Any]:
    """A PE class that counts the events of its key in ``clicks``, and then calls a function of the
    instance and the event, plain or async."""
    if inspect.iscoroutinefunction(then):

        async def on_event(pe: Any, event: Any) -> None:
            pe.clicks += 1
            await then(pe, event)

    else:

        def on_event(pe: Any, event: Any) -> None:  # type: ignore[misc]
            pe.clicks += 1
            then(pe, event)

    return pe_class(name, clicks=0, on_event=handler_of(types, on_event))


class OnePE(App):
    """An app with one PE, a class or its handler, on one input stream."""

    def __init__(
        self,
        pe: type[ProcessingElement] | Callable[[Any, Any], Any],
        stream: str = "clicks",
        *,
        name: str = "app",
        types: Any = Click,
        **options: Any,
    ) -> None:
        super().__init__(name)
        self.pe: Any = self.create_pe(pe if isinstance(pe, type) else handling(pe, types))
        options = {"key": "user", **options}
        self.input = self.create_input_stream(stream, self.pe, **options)


class NotingApp(OnePE):
    """Notes in ``seen`` what comes, in order: each event, or ``note(pe, event)``."""

    def __init__(
        self,
        stream: str = "clicks",
        *,
        seen: list[Any] | None = None,
        note: Callable[[Any, Any], Any] = lambda _pe, event: event,
        **options: Any,
    ) -> None:
        self.seen: list[Any] = [] if seen is None else seen
        super().__init__(lambda pe, event: self.seen.append(note(pe, event)), stream, **options)

    @property
    def numbers(self) -> list[int]:
        return [event.n for event in self.seen]

    @property
    def by_user(self) -> dict[str, list[int]]:
        """The numbers of each user, in order."""
        found = defaultdict(list)
        for event in self.seen:
            found[event.user].append(event.n)
        return dict(found)


class HoldingApp(OnePE):
    """Notes in ``seen`` what comes; while it is held, its handlers wait before that."""

    def __init__(self, stream: str = "clicks", *, held: bool = True, **options: Any) -> None:
        self.seen: list[Any] = []
        self.may_go_on = trio.Event()
        if not held:
            self.may_go_on.set()

        async def on_event(_pe: Any, event: Any) -> None:
            if not self.may_go_on.is_set():
                await self.may_go_on.wait()
            self.seen.append(event)

        super().__init__(on_event, stream, **options)

    def hold(self) -> None:
        self.may_go_on = trio.Event()

    @property
    def numbers(self) -> list[int]:
        return [event.n for event in self.seen]


class ForwardingApp(App):
    """Puts each click of its input stream on an output stream."""

    def __init__(self, stream: str = "clicks", to: str = "onward", *, key: Any = None) -> None:
        super().__init__("forward")
        forward = self.create_pe(Forward)
        self.create_input_stream(stream, forward, key="user")
        forward.out = self.create_output_stream(to, key=key, types=Click)


class CountAndTell(ProcessingElement):
    """Counts the clicks of its key, and tells its app; a negative number removes it."""

    count: int = 0
    seen: list[int] = []  # noqa: RUF012 - copied for each instance

    def on_create(self) -> None:
        self.app.created.append(self.key)

    def on_event(self, event: Click) -> None:
        self.count += 1
        self.seen.append(event.n)
        self.app.counts[self.key] = self.count
        self.app.seen[self.key] = list(self.seen)
        if event.n < 0:
            self.remove()

    def on_remove(self) -> None:
        self.app.gone.append(self.key)


class CountingApp(App):
    """Counts clicks by user, in state; the app itself has what was told in this life."""

    def __init__(
        self,
        pe: type[ProcessingElement] = CountAndTell,
        *,
        key: Any = "user",
        system: str = "live",
        parallelism: int = 1,
        **cache: Any,
    ) -> None:
        super().__init__("counting")
        self.pe = pe
        self.cache = cache
        self.input = {"key": key, "system": system}
        self.parallelism = parallelism
        self.created: list[Any] = []
        self.gone: list[Any] = []
        self.counts: dict[Any, int] = {}
        self.seen: dict[Any, list[int]] = {}

    def on_init(self) -> None:
        pe = self.create_pe(self.pe)
        if self.cache:
            pe.set_pe_cache(**self.cache)
        clicks = self.create_input_stream("clicks", pe, **self.input)
        clicks.set_parallelism(self.parallelism)
