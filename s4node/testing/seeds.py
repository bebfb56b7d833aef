"""Scenarios of a cluster, run by seed: what fails is repeated, and made as short as possible.

Rules
- A scenario is a function of a seed that uses ClusterTest. Two runs of one seed have to be equal.
- Of a failure, the faults without which it still fails are left out, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from itertools import chain, zip_longest
from typing import NamedTuple

from s4node.errors import S4Error
from s4node.testing.faults import Fault
from s4node.testing.memory_network import Message

_SHOWN = 30
"""So many messages of a run that fails are shown."""


class Recorded(NamedTuple):
    """What a run of a scenario leaves: the faults that were chosen, and all messages."""

    left_out: frozenset[int]
    chosen: list[Fault]
    traces: list[list[Message]]


recorded: ContextVar[Recorded | None] = ContextVar("recorded", default=None)
"""Where the ClusterTests of a scenario record what happens; None outside of :func:`check_seeds`."""


def check_seeds(scenario: Callable[[int], object], seeds: Iterable[int]) -> None:
    """Run a scenario with each of the seeds; raise the first error, with how to repeat it.

    The error has notes: the seed, the fewest faults with which the scenario still fails, and the
    last messages of that run. The first seed runs twice. Raises S4Error if two runs of a seed
    differ, because the app or the scenario reads the time or randomness of the machine, has
    threads, or leaves something behind in a module.
    """
    for number, seed in enumerate(seeds):
        error, run = _run(scenario, seed)
        if error is None and number:
            continue
        other, again = _run(scenario, seed)
        _check_equal(seed, run, again)
        if (error is None) != (other is None):
            raise S4Error(
                f"seed {seed}: one of two equal runs fails, so something is left of the other one; "
                f"keep what changes in attributes of PEs, not in modules or classes"
            ) from (error or other)
        if error is not None:
            raise _shortened(scenario, seed, error, run)


def _run(
    scenario: Callable[[int], object], seed: int, left_out: frozenset[int] = frozenset()
) -> tuple[Exception | None, Recorded]:
    run = Recorded(left_out, [], [])
    token = recorded.set(run)
    try:
        scenario(seed)
    except Exception as error:
        return error, run
    finally:
        recorded.reset(token)
    return None, run


def _check_equal(seed: int, one: Recorded, other: Recorded) -> None:
    messages = [[*chain.from_iterable(run.traces)] for run in (one, other)]
    for number, (first, second) in enumerate(zip_longest(*messages)):
        if first != second:
            raise S4Error(
                f"seed {seed}: two runs differ at message {number}: {first} and {second} (time, "
                f"from, to, bytes, checksum); take the time from app.clock(), chance from a Random "
                f"with a seed, and start no threads"
            )


def _shortened(
    scenario: Callable[[int], object], seed: int, error: Exception, run: Recorded
) -> Exception:
    """The error of the run with the fewest faults, with a note."""
    left_out: frozenset[int] = frozenset()
    chosen = run.chosen
    for index in range(len(chosen)):
        found, shorter = _run(scenario, seed, left_out | {index})
        if found is not None:
            error, run, left_out = found, shorter, left_out | {index}
    kept = [fault for index, fault in enumerate(chosen) if index not in left_out]
    lines = "".join(f"\n    {fault}," for fault in kept)
    error.add_note(
        f"check_seeds: seed {seed} fails with {len(kept)} of {len(chosen)} chosen faults:{lines}"
    )
    messages = [*chain.from_iterable(run.traces)]
    shown = "".join(
        f"\n    {at:.6f} {one} to {other}: {size} bytes"
        for at, one, other, size, _ in messages[-_SHOWN:]
    )
    error.add_note(f"the last of {len(messages)} messages:{shown}")
    return error
