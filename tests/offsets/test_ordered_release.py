"""The promises of the release: in order, never past a commit that was asked for, and no later."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from s4node.offsets.ordered_release import OrderedRelease


def test_after_the_commit_completed_events_are_released_without_another_event() -> None:
    release = begun(4)
    for number in (3, 2):
        release.complete(number)
    release.complete(1, stops=True)
    release.complete(0)
    assert release.commit_taken() == [2, 3]
    assert len(release) == 0


@given(
    st.lists(st.tuples(st.sampled_from(["begin", "end", "end", "commit"]), st.booleans())),
    st.randoms(use_true_random=False),
)
def test_any_order_of_completion_is_released_in_order_and_covers_what_a_commit_may(
    moves: list[tuple[str, bool]], random: object
) -> None:
    release: OrderedRelease[int] = OrderedRelease()
    started = 0
    outstanding: list[int] = []
    stops: set[int] = set()
    out: list[int] = []

    def check() -> None:
        release.validate()
        assert out == list(range(len(out)))  # in order, each once
        if release.stopped:
            assert out[-1] in stops  # exactly up to the event that asked
        else:  # nothing that could be released waits
            assert len(out) == min(outstanding, default=started)

    for move, asks in moves:
        if move == "begin":
            release.add(started)
            outstanding.append(started)
            started += 1
        elif move == "end" and outstanding:
            number = outstanding.pop(random.randrange(len(outstanding)))  # type: ignore[attr-defined]
            if asks:
                stops.add(number)
            out += release.complete(number, asks)
        elif move == "commit" and release.stopped:
            out += release.commit_taken()
        check()
    for number in outstanding[:]:
        outstanding.remove(number)
        out += release.complete(number)
    for _ in range(len(stops) + 1):
        out += release.commit_taken()
    assert out == list(range(started))


# -- set-up ---------------------------------------------------------------------------------------


def begun(count: int) -> OrderedRelease[int]:
    release: OrderedRelease[int] = OrderedRelease()
    for number in range(count):
        release.add(number)
    return release
