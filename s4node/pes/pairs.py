"""The join of two types of events that are close in time, for each key. Pure.

Rules
- A right event pairs with a left one of its key if its time is in ``within`` before and after that
  of the left one, both included, to the microsecond. Every such pair is found once.
- A left event that has no pair is alone once the watermark has passed the last time for one.
- Events are kept as long as something may pair with them; a key without any is removed.
- The streams have ``order="time"``. Otherwise pairs are missed whose events come too late.
"""

from __future__ import annotations

from typing import Any, ClassVar

from s4node.app.processing_element import ElementType, ProcessingElement
from s4node.app.windows import LONGEST
from s4node.errors import GraphError
from s4node.events.event import Event
from s4node.events.event_time import TimeRule
from s4node.events.schema import EventType

_MICROSECOND = 1e-6


class PairsType(ElementType):
    """The class of classes of pairs: makes state and handlers for the two types of events."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        left: type | None = None,
        right: type | None = None,
        within: tuple[float, float] = (0, 0),
        time: str = "at",
        **more: Any,
    ) -> PairsType:
        if left is not None and right is not None:
            kinds = {"_lefts": list[left], "_paired": list[bool], "_rights": list[right]}  # type: ignore[valid-type]
            namespace["__annotations__"] = {**namespace.get("__annotations__", {}), **kinds}
            namespace |= {"_lefts": [], "_paired": [], "_rights": []}
            namespace["_within"] = _checked(name, within)
            if left is right:
                raise GraphError(f"{name}: pairs are of two types of events, not of one")

            def on_event_left(self: Any, event: Any) -> None:
                self._left(event)

            def on_event_right(self: Any, event: Any) -> None:
                self._right(event)

            on_event_left.__annotations__ = {"event": left}
            on_event_right.__annotations__ = {"event": right}
            namespace["on_event_left"], namespace["on_event_right"] = on_event_left, on_event_right
            for kind in (left, right):
                fields = {field: text for field, text, _ in EventType(kind).declaration.fields}
                if issubclass(kind, Event) and fields.get(time) not in ("float", "int", "datetime"):
                    raise GraphError(
                        f"{name}: time={time!r} is {fields.get(time, 'not there')} in "
                        f"{kind.__name__}; name a field of both types that is a float (seconds), "
                        f"an int (ms) or a datetime"
                    )
            rule = TimeRule(name, time, (EventType(left), EventType(right)))
            namespace["_time_of"] = staticmethod(rule.find)
        return super().__new__(mcs, name, bases, namespace, **more)  # type: ignore[return-value]


def _checked(name: str, within: Any) -> tuple[float, float]:
    try:
        before, after = within
        good = 0 <= before <= LONGEST and 0 <= after <= LONGEST
    except (TypeError, ValueError):
        good = False
    if not good:
        raise GraphError(
            f"{name}: within={within!r}; give the seconds before and after the left event, each "
            f"from 0 to a year"
        )
    return float(before), float(after)


class Pairs(ProcessingElement, metaclass=PairsType):
    """Pairs of a left and a right event: ``class Paid(Pairs, left=Order, right=Payment, ...)``.

    ``within=(60, 900)`` says how many seconds before and after the left event the right one may
    be; ``time`` is the field of both that has it. Write ``on_pair(self, left, right)``, and
    ``on_alone(self, left)`` for left events without a pair.
    """

    _within: ClassVar[tuple[float, float]]
    _time_of: ClassVar[Any]
    _lefts: list[Any]
    _paired: list[bool]
    _rights: list[Any]

    def on_pair(self, left: Any, right: Any) -> None:
        """Called once for each pair."""

    def on_alone(self, left: Any) -> None:
        """Called for a left event that has no pair, when none can come any more."""

    def _left(self, event: Any) -> None:
        near = [each for each in self._rights if self._is_near(event, each)]
        self._lefts.append(event)
        self._paired.append(bool(near))
        self._wait()
        for right in near:
            self.on_pair(event, right)

    def _right(self, event: Any) -> None:
        self._rights.append(event)
        if len(self._rights) == 1:  # else it is dropped with those before it
            self._wait()
        for number, left in enumerate(self._lefts):
            if self._is_near(left, event):
                self._paired[number] = True
                self.on_pair(left, event)

    def _is_near(self, left: Any, right: Any) -> bool:
        before, after = self._within
        return bool(-before <= round(self._time_of(right) - self._time_of(left), 6) <= after)

    def _last_for(self, event: Any, further: float) -> float:
        return float(self._time_of(event) + further + _MICROSECOND)

    def _wait(self) -> None:
        """Have the next look once nothing can pair any more with the first left event, or with any
        right one of now, if that is earlier: so right ones go a few at a time."""
        before, after = self._within
        ends = []
        if self._lefts:
            ends.append(self._last_for(min(self._lefts, key=self._time_of), after))
        if self._rights:
            ends.append(self._last_for(max(self._rights, key=self._time_of), before))
        self.at(min(ends))

    def on_timer(self, _name: str) -> None:
        """Drop the events with which nothing can pair any more."""
        before, after = self._within
        past = self._home.timers.watermark  # type: ignore[union-attr]
        lefts, self._lefts = self._lefts, []
        paired, self._paired = self._paired, []
        alone = []
        for left, has_pair in zip(lefts, paired, strict=True):
            if self._last_for(left, after) > past:
                self._lefts.append(left)
                self._paired.append(has_pair)
            elif not has_pair:
                alone.append(left)
        self._rights = [each for each in self._rights if self._last_for(each, before) > past]
        if self._lefts or self._rights:
            self._wait()
        else:
            self.remove()
        for left in alone:
            self.on_alone(left)
