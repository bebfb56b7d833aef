"""word-count: sentences to words on a keyed stream across two nodes to counts.

The limit is the same work in one bare loop in one process: decode, split, count in a dict of the
same objects. Events are words.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec

from benchmarks import workload
from benchmarks.flows import WORDS_IN_A_SENTENCE, Sentence
from benchmarks.process import Role
from benchmarks.result import Result, middle

CHUNK = 256
_PATIENCE = 60.0
LOSSLESS = {"s4.cluster.partitions": "2", "s4.sender.executor": "block"}


def run(*, quick: bool, say: Callable[[str], None]) -> list[Result]:
    """One row."""
    runs, seconds = (1, 0.5) if quick else (5, 5.5)
    found, limits = [], []
    for number in range(runs):
        say(f"run {number + 1} of {runs}: one bare loop, then two nodes")
        with Role("words_limit", seconds=seconds) as limit:
            limits.append(limit.hear())
        found.append(system(seconds, say))
    rate = middle([one["words"] / one["seconds"] for one in found])
    limit_rate = middle([one["words"] / one["seconds"] for one in limits])
    return [
        Result(
            "word-count",
            events=sum(one["words"] for one in found),
            seconds=sum(one["seconds"] for one in found),
            events_per_s=rate,
            limit_events_per_s=limit_rate,
            ratio=rate / limit_rate,
            cpu_s_per_million=middle([one["cpu_s"] / one["words"] * 1e6 for one in found]),
            rss_mb=max(one["rss_mb"] for one in found),
            checked=all(one["checked"] for one in found),
            notes={"nodes": 2},
        )
    ]


def sentences() -> list[Sentence]:
    """The workload's words in sentences of ten, repeated to fill whole chunks."""
    words = workload.key_sequence()
    step = WORDS_IN_A_SENTENCE
    texts = [" ".join(words[at : at + step]) for at in range(0, len(words) - step, step)]
    return [Sentence(text) for text in texts[: len(texts) // CHUNK * CHUNK]]


def system(seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """One run of two nodes and a producer; says what is wrong with the counts."""
    with tempfile.TemporaryDirectory(prefix="s4-bench-") as folder, ExitStack() as stack:
        task = {"app": "words", "folder": folder, "expected": 2, "whole": True}
        members = [
            stack.enter_context(Role("member", member=f"n{n}", settings=LOSSLESS, **task))
            for n in range(2)
        ]
        addresses = [member.hear()["address"] for member in members]
        before = [ask(member) for member in members]
        with Role("sentences", address=addresses[0], seconds=seconds) as producer:
            sent = producer.hear()
        want = sent["sent"] * WORDS_IN_A_SENTENCE
        began = time.perf_counter()
        wait_counted(members, want)
        seconds = sent["seconds"] + time.perf_counter() - began
        after = [ask(member) for member in members]
        counts: Counter[str] = Counter()
        for now in after:
            counts.update(now["counts"])
        right = counts == (expected := truth(sent["sent"]))
        if not right or sent["refused"]:
            wrong = {word: counts[word] - expected[word] for word in counts | expected}
            say(
                f"of {want} words, {counts.total()} were counted: "
                f"{sum(n for n in wrong.values() if n > 0)} too many, "
                f"{-sum(n for n in wrong.values() if n < 0)} missing; "
                f"{sent['refused']} sentences were refused, first {sent['reason']!r}; "
                f"at the members: {[now['unfinished'] for now in after]}"
            )
        cpu = sum(b["cpu_s"] - a["cpu_s"] for a, b in zip(before, after, strict=True))
        for member in members:
            member.tell({})
    return {
        "words": want,
        "seconds": seconds,
        "cpu_s": cpu + sent["cpu_s"],
        "rss_mb": max(now["rss_mb"] for now in after),
        "checked": right,
    }


def ask(member: Role) -> dict[str, Any]:
    """The counts of a member so far."""
    member.tell({"stop": False})
    return member.hear()


def wait_counted(members: Sequence[Role], events: int) -> int:
    """Wait until members have counted so many events, or no more come; return the count."""
    counted, progress = 0, time.perf_counter()
    total: int
    while (total := sum(ask(member)["total"] for member in members)) < events:
        if total > counted:
            counted, progress = total, time.perf_counter()
        if time.perf_counter() - progress > _PATIENCE:
            break
        time.sleep(0.001)
    return total


def truth(sent: int) -> Counter[str]:
    """The counts of the words of the first ``sent`` sentences."""
    all_of_them = sentences()
    passes, rest = divmod(sent, len(all_of_them))
    found: Counter[str] = Counter()
    for times, part in ((passes, all_of_them), (1, all_of_them[:rest])):
        for word, count in Counter(w for s in part for w in s.text.split()).items():
            found[word] += times * count
    return found


def bodies() -> list[bytes]:
    """The frames of one pass over the sentences, as the bare loop reads them."""
    encode = msgspec.msgpack.Encoder().encode
    found = sentences()
    return [encode(found[at : at + CHUNK]) for at in range(0, len(found), CHUNK)]
