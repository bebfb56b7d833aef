"""The promises of a PE's instances: one for each key, within their bounds, gone with notice."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s4node.app.app import App
from s4node.app.instances import BoundedInstances, Instances
from s4node.app.plan.dispatch import make_instances
from s4node.app.processing_element import ProcessingElement
from s4node.errors import KeyFinderError
from s4node.events.event import GenericEvent
from s4node.runtime.task.pe_state import PeState


def test_reading_a_key_makes_its_instance_once() -> None:
    instances, _ = instances_of()
    assert type(instances) is Instances
    one = instances["a"]
    assert instances["a"] is one
    assert instances["b"] is not one
    assert LOG == [("create", "a"), ("create", "b")]


@pytest.mark.parametrize("bad", [None, True, 1.5, ("a", None), ()])
def test_a_value_that_is_not_a_key_has_no_instance(bad: Any) -> None:
    instances, _ = instances_of()
    with pytest.raises(KeyFinderError):
        instances[bad]
    assert len(instances) == 0


def test_an_instance_whose_on_create_fails_is_not_kept() -> None:
    instances, _ = instances_of(fragile=True)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            instances["a"]
    assert "a" not in instances


def test_removing_calls_on_remove_once_and_the_next_event_makes_a_new_instance() -> None:
    instances, _ = instances_of()
    gone: list[Any] = []
    instances.gone = gone.append
    one = instances["a"]
    one.remove()
    one.remove()
    assert "a" not in instances
    assert gone == ["a"]
    assert instances["a"] is not one
    assert LOG == [("create", "a"), ("remove", "a"), ("create", "a")]


def test_an_old_instance_does_not_remove_its_successor() -> None:
    instances, _ = instances_of()
    old = instances["a"]
    old.remove()
    new = instances["a"]
    old.remove()
    assert instances["a"] is new
    assert LOG.count(("remove", "a")) == 1


def test_a_singleton_is_one_instance_without_a_key() -> None:
    instances, _ = instances_of()
    one = instances.singleton()
    assert instances.singleton() is one
    assert one.key is None
    assert len(instances) == 1


def test_a_singleton_stays_whatever_the_bounds_of_its_cache() -> None:
    app = App("shop")
    pe = app.create_pe(Logged)
    pe.set_pe_cache(1, 10.0)
    pe.set_singleton()
    app.freeze()
    clock = Clock()
    instances = make_instances(app.prototypes["Logged"][0], 0, clock)
    one = instances.singleton()
    clock.now += 1000
    instances.trim()
    assert instances.singleton() is one
    assert instances.next_expiry is None


def test_without_bounds_nothing_is_trimmed_or_due() -> None:
    instances, clock = instances_of()
    for key in range(100):
        instances[key]
    clock.now += 1e9
    instances.trim()
    assert len(instances) == 100
    assert instances.next_expiry is None


def test_instances_in_use_stay_and_the_next_oldest_are_removed() -> None:
    instances, _ = instances_of(size=10)
    assert isinstance(instances, BoundedInstances)
    for key in range(100):
        assert not instances.crowded(25)
        instances[key]
    assert instances.crowded(25)
    in_use = range(0, 50, 2)
    instances.shrink(in_use)
    assert set(instances) == set(in_use)
    instances.shrink(())
    assert list(instances) == list(range(30, 50, 2))


class Kept:
    """Saved instances, none of which ever changes, and the state of a task that has them."""

    stored = True

    def now(self) -> float:
        return 0.0

    def meta(self, _name: str) -> None: ...

    def set_meta(self, _name: str, _value: Any) -> None: ...

    def unused(self) -> list[str]:
        return []

    def saved(self, _name: str, _live: Any, codec: Any) -> Any:
        self.row = codec.encode
        return self

    def find(self, keys: Any) -> dict[Any, bytes]:
        return {key: self.data for key in keys if key == "a"}

    def touch(self, _keys: Any) -> None: ...

    def touch_new(self, _instance: Any) -> None: ...

    def evict(self, _key: Any) -> None: ...


def test_an_instance_that_a_handler_has_is_not_read_again() -> None:
    app = App("shop")
    pe = app.create_pe(Logged)
    pe.set_pe_cache(1)
    for name in ("slices", "parallel"):
        app.create_input_stream(name, pe, key="user")
    app.freeze()
    instances = make_instances(app.prototypes["Logged"][0], 0, Clock())
    state = Kept()
    kept = PeState(app, {"Logged": instances}, {}, state)  # type: ignore[arg-type]
    state.data = state.row(instances["a"])
    instances["b"]
    kept.before("slices", [GenericEvent(user="a")])  # which is in memory
    instances.trim()
    kept.before_one("parallel", GenericEvent(user="a"))
    used = dict.__getitem__(instances, "a")
    kept.before_one("parallel", GenericEvent(user="new"))
    dict.pop(instances, "a")  # as a handler in a thread does for a moment
    instances["new"]
    assert "a" not in instances
    dict.__setitem__(instances, "a", used)


@given(
    st.integers(0, 4),
    st.sampled_from([0.0, 5.0]),
    st.lists(
        st.tuples(
            st.sampled_from(["use", "use", "use", "trim", "wait", "remove"]), st.integers(0, 6)
        ),
        max_size=60,
    ),
)
def test_a_bounded_map_is_a_list_of_keys_by_last_use(
    size: int, idle: float, moves: list[tuple[str, int]]
) -> None:
    if not size and not idle:
        size = 1
    instances, clock = instances_of(size, idle)
    model: dict[int, float] = {}  # by last use, oldest first
    for move, key in moves:
        if move == "use":
            model.pop(key, None)
            model[key] = clock.now
            assert instances[key].key == key
        elif move == "remove" and key in model:
            del model[key]
            instances.get(key).remove()  # type: ignore[union-attr]
        elif move == "wait":
            clock.now += key
        elif move == "trim":
            instances.trim()
            while size and len(model) > size:
                del model[next(iter(model))]
            if idle:
                model = {k: used for k, used in model.items() if used > clock.now - idle}
            if idle and model:
                assert instances.next_expiry == min(model.values()) + idle
        assert set(instances) == set(model)
        assert LOG.count(("create", key)) - LOG.count(("remove", key)) == (key in model)


# -- set-up ---------------------------------------------------------------------------------------


class Logged(ProcessingElement):
    log: Any = None
    fragile: bool = False

    def on_event(self, event: GenericEvent) -> None: ...

    def on_create(self) -> None:
        if self.fragile:
            raise ZeroDivisionError
        LOG.append(("create", self.key))

    def on_remove(self) -> None:
        LOG.append(("remove", self.key))


LOG: list[tuple[str, Any]] = []


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def instances_of(size: int = 0, idle: float = 0.0, **state: Any) -> tuple[Instances, Clock]:
    LOG.clear()
    app = App("shop")
    pe = app.create_pe(Logged)
    for name, value in state.items():
        setattr(pe, name, value)
    if size or idle:
        pe.set_pe_cache(size, idle)
    app.freeze()
    clock = Clock()
    return make_instances(app.prototypes["Logged"][0], 0, clock), clock
