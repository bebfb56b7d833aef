"""The handlers of a PE class: which method is called for an event, and for a timer.

Rules
- Handlers are found by their name and the annotation of their first parameter, once, when the
  prototype is made. An event's handler is the one for the nearest class in its method resolution
  order, so the most specific type wins in any hierarchy.
- A method with the wrong parameters is a GraphError when the PE is created.
"""

from __future__ import annotations

import dis
import inspect
import types
import typing
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias, TypeGuard

from s4node.errors import GraphError
from s4node.events.event import Event, GenericEvent

Handler: TypeAlias = Callable[[Any, Any], Any]

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)


class HandlerTable(dict[type, Handler]):
    """From an event's class to the most specific handler; fills itself as classes appear."""

    def __init__(self, name: str, handlers: dict[type, Handler]) -> None:
        super().__init__()
        self.name = name
        self.declared = handlers
        self.unhandled: Counter[type] = Counter()
        self.on_unhandled: Callable[[type], None] = lambda _: None

    def find(self, cls: type) -> Handler | None:
        """The handler of the nearest base class, or None."""
        for base in cls.__mro__:
            if base in self.declared:
                return self.declared[base]
        return None

    def __missing__(self, cls: type) -> Handler:
        found = self.find(cls)
        if found is None:
            found = self._count_unhandled
            self.on_unhandled(cls)
        self[cls] = found
        return found

    def _count_unhandled(self, _instance: Any, event: Any) -> None:
        self.unhandled[event.__class__] += 1

    @property
    def any_async(self) -> bool:
        return any(map(inspect.iscoroutinefunction, self.declared.values()))


def may_return(handler: Handler) -> bool:
    """Return False if the code of a function shows that it returns nothing but None."""
    code = getattr(handler, "__code__", None)
    if code is None or code.co_flags & inspect.CO_GENERATOR:
        return True
    before = None
    for each in dis.get_instructions(code):
        if each.opname == "RETURN_CONST":
            none = each.argval is None
        else:
            none = before is not None and before.opname == "LOAD_CONST" and before.argval is None
        if each.opname.startswith("RETURN_") and not (none and not each.is_jump_target):
            return True
        before = each
    return False


def check_returned(_pe: object, result: Any) -> None:
    """Raise TypeError if a handler that is not ``async`` returned a coroutine, which never ran."""
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(
            f"the handler returned a coroutine of {result.__qualname__}, which is not awaited; "
            f"write 'async def' and await it there"
        )


def plain_hook(cls: type, name: str) -> Callable[[Any], Any] | None:
    hook = getattr(cls, name, None)
    if hook is None:
        return None
    if not callable(hook):
        raise GraphError(f"{cls.__name__}.{name} is not a method")
    parameters = inspect.signature(hook).parameters.values()
    if sum(p.default is p.empty and p.kind not in _VARIABLE for p in parameters) != 1:
        raise GraphError(f"{cls.__name__}.{name} takes {len(parameters)} parameters; write (self)")
    return hook  # type: ignore[no-any-return]


def timer_hook(cls: type) -> Callable[[Any, str], Any] | None:
    hook = getattr(cls, "on_timer", None)
    if hook is None:
        return None
    if not callable(hook) or len(inspect.signature(hook).parameters) != 2:
        raise GraphError(f"{cls.__name__}.on_timer has other parameters; write (self, name)")
    return hook  # type: ignore[no-any-return]


def handlers_of(cls: type, prefix: str) -> dict[type, Handler]:
    """Handlers by event type; of two for one type in a class hierarchy the subclass's wins."""
    found: dict[type, Handler] = {}
    owner: dict[type, str] = {}
    names = [n for n in dir(cls) if n == prefix or n.startswith(f"{prefix}_")]
    depth = {n: next(i for i, c in enumerate(cls.__mro__) if n in c.__dict__) for n in names}
    for name in sorted(names, key=lambda n: depth[n]):
        function = inspect.getattr_static(cls, name)
        if not inspect.isfunction(function):
            raise GraphError(f"{cls.__name__}.{name} is not a method")
        for event_type in _event_types_of(cls, function):
            if event_type not in found:
                found[event_type], owner[event_type] = function, name
            elif depth[owner[event_type]] == depth[name]:
                raise GraphError(
                    f"{cls.__name__}.{owner[event_type]} and {cls.__name__}.{name} both take "
                    f"{event_type.__name__}; keep one"
                )
    return found


def _event_types_of(cls: type, function: Callable[..., Any]) -> tuple[type, ...]:
    """The annotation of a handler's first parameter; ``object`` without one."""
    place = f"{cls.__name__}.{function.__name__}"
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) != 2:
        raise GraphError(f"{place} takes {len(parameters)} parameters; write (self, event: Type)")
    if parameters[1].kind in _BY_NAME:
        raise GraphError(f"{place} takes its event by name only; write (self, event: Type)")
    annotation = parameters[1].annotation
    if annotation is inspect.Parameter.empty:
        return (object,)
    if isinstance(annotation, str):
        try:
            annotation = _resolved(annotation, cls, inspect.unwrap(function))
        except (NameError, AttributeError, SyntaxError, TypeError) as error:
            raise GraphError(
                f"{place}: the annotation {annotation!r} cannot be resolved ({error}); define "
                f"the event type at the top of the module"
            ) from error
    if annotation is Any:
        return (object,)
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    kinds = typing.get_args(annotation) if union else (annotation,)
    for kind in kinds:
        if kind is not object and not _is_event_type(kind):
            raise GraphError(f"{place} takes {kind!r}, which is not an event type{_instead(kind)}")
    return tuple(kinds)


def _is_event_type(kind: object) -> TypeGuard[type]:
    return isinstance(kind, type) and issubclass(kind, (Event, GenericEvent))


def _instead(kind: object) -> str:
    """The hint for an event type with parameters, which its events do not have."""
    origin = typing.get_origin(kind)
    if not _is_event_type(origin):
        return ""
    name = origin.__name__
    return (
        f"; an event is a {name} whatever it holds: write {name}, or a class of your own: "
        f"class Mine({kind!r})"
    )


def _resolved(annotation: str, cls: type, function: Any) -> Any:
    """Resolve one annotation of a method, without the others."""

    def only() -> None: ...

    only.__annotations__ = {"event": annotation}
    scope = {**inspect.getclosurevars(function).nonlocals, cls.__name__: cls}
    return typing.get_type_hints(only, function.__globals__, scope)["event"]
