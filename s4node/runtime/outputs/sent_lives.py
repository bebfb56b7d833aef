"""What a task has sent to consumers, life by life of its channels.

Rules
- A life is a producer name, so a consumer numbers its events apart. The consumer learns a life with
  the first event, and remembers the latest ``wire.MAX_LIVES`` of a task. It takes the rest of a
  former life, unless it remembers so many later ones.
- The numbers of a life only rise, so what was sent between two commits is a difference. Going back
  to a savepoint sends no further numbers in former lives, but maybe some that had not arrived.
- A channel's rows have its numbers. When they go, the totals stay as a fact of the task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from s4node import tokens
from s4node.net.egress.outbox_rows import (
    Rows,
    begun_anew,
    channels_of,
    life_of,
    numbered,
    renamed,
    weight_of,
)
from s4node.net.wire import frame as wire
from s4node.runtime.outputs.channels import FORMER, Side, channel_name, parts_of
from s4node.state.job import SENT
from s4node.state.rows import OUTBOX
from s4node.state.task_state import TaskState

Channels: TypeAlias = Mapping[str, list[tuple[bytes, bytes]]]
"""The rows of channels, by name."""


class Sent(NamedTuple):
    """The number of events of a life that were ``sent``, how many of them are ``acknowledged``, and
    how many may have arrived because a savepoint still had them."""

    sent: int = 0
    acknowledged: int = 0
    later: int = 0


SentLives: TypeAlias = dict[tuple[str, str, str], Sent]
"""By stream, consumer and life."""

Stored: TypeAlias = Iterable[tuple[str, str, str, int, int, int]]
"""The same as it is stored."""

_NOTHING = Sent()


def stored(lives: SentLives) -> list[tuple[str, str, str, int, int, int]]:
    return [(*life, *sent) for life, sent in sorted(lives.items())]


def lives_in(rows: Stored) -> SentLives:
    return {(stream, consumer, life): Sent(*sent) for stream, consumer, life, *sent in rows}


def merged(*known: SentLives) -> SentLives:
    found: SentLives = {}
    for lives in known:
        for life, sent in lives.items():
            found[life] = Sent(*map(max, found.get(life, _NOTHING), sent))
    return found


def sent_before(state: TaskState) -> SentLives:
    """What a task has sent on channels that are gone, as of its last commit."""
    return lives_in(state.meta(SENT) or ())


def sent_by(state: TaskState) -> SentLives:
    """What a task has sent in all lives, as of its last commit."""
    return merged(sent_on(to_consumers(state.rows(OUTBOX))), sent_before(state))


def to_consumers(rows: Rows) -> Channels:
    """The channels to consumers among a task's rows."""
    return {name: found for name, found in channels_of(rows).items() if parts_of(name)[1]}


def sent_on(channels: Channels) -> SentLives:
    found: SentLives = {}
    for name, rows in channels.items():
        if sent := numbered(name, rows):
            found[(*parts_of(name), life_of(rows))] = Sent(sent, sent - weight_of(rows)[0])
    return found


def sent_since(channels: Channels, before: SentLives, after: SentLives) -> Counter[tuple[str, str]]:
    """The events that may have arrived since ``before``, when these were the channels, and that do
    not wait in them, by stream and consumer."""
    own, found = sent_on(channels), Counter[tuple[str, str]]()
    for life, now in after.items():
        then = before.get(life, _NOTHING)
        gone = max(0, then.sent - own.get(life, _NOTHING).sent)  # that did not wait any more
        found[life[:2]] += max(0, now.sent - then.sent) + min(gone, now.later - then.later)
    return +found


def with_waiting(channels: Channels, sent: SentLives) -> SentLives:
    """The same once the events that wait in former channels, maybe in vain before, have arrived."""
    ended, found = ended_in(channels, sent), merged(sent)
    going = {name: rows for name, rows in channels.items() if name not in ended}
    for life, own in sent_on(going).items():
        now = merged({life: own}, {life: sent.get(life, own)})[life]
        more = min(own.sent - own.acknowledged, now.sent - now.acknowledged)
        found[life] = now._replace(later=now.later + more)
    return found


def ended_in(channels: Channels, sent: SentLives) -> dict[str, int]:
    """The channels of lives that are over, with the waiting events of each."""
    return {
        name: weight_of(rows)[0]
        for name, rows in channels.items()
        if numbered(name, rows) and _is_over(name, life_of(rows), sent)
    }


def rows_anew(channels: Channels, sent: SentLives) -> Rows:
    """The rows with which a task goes on that has ``sent`` more than these channels have.

    Channels become former ones, after which new ones begin. A channel that has nothing to send is
    left out. A channel whose events have no numbers yet is a new one itself.
    """
    ended, last = ended_in(channels, sent), dict[tuple[str, str], str]()
    for name in sorted(channels, key=len):  # the newest first, and none is left out between two
        rows, base = channels[name], parts_of(name)
        if not weight_of(rows)[0]:
            continue
        if not numbered(name, rows):
            yield from begun_anew(name, rows, tokens.later())
        elif name not in ended:
            last[base] = f"{last.get(base, channel_name(*base))}{FORMER}"
            yield from renamed(rows, last[base])


def remember(side: Side, channel: str, life: str, sent: Sent) -> None:
    """Remember what was sent in a life of a channel, whose rows go with the next commit."""
    known = merged(side.sent, {(*parts_of(channel), life): sent})
    if life and sent.sent and known != side.sent:
        side.sent = known
        side.state.set_meta(SENT, stored(known))


def _is_over(channel: str, life: str, sent: SentLives) -> bool:
    """Return True if a channel's consumer may know too many later lives to take this one."""
    later = [each for *base, each in sent if (*base,) == parts_of(channel) and each > life]
    return len(later) >= wire.MAX_LIVES
