"""Posts for the demo: a folder of text files of five minutes each, the same for the same seed.

A line is a time, a tab and a text with hashtags. Lines are up to 20 s out of order. Some topics are
mentioned more often than others, and now and then one has a rush for some minutes.
"""

from __future__ import annotations

import os
import random
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path

BEGIN = datetime(2024, 1, 31, 8, tzinfo=UTC)
MINUTES = 120
FILE_MINUTES = 5

_TOPICS = 400
_DISORDER_SECONDS = 20
_RUSH = 4, 12  # minutes that a rush takes, at least and at most
_RUSHES = 25
_WORDS = [
    "so",
    "much",
    "about",
    "that",
    "again",
    "today",
    "why",
    "not",
    "everybody",
    "says",
    "what",
]


def write_posts(folder: Path, posts: int, seed: int) -> None:
    """Write ``posts`` posts of two hours."""
    chance = random.Random(seed)  # noqa: S311 - no secrets
    topics = [f"topic{n}" for n in range(_TOPICS)]
    weights = list(accumulate(1 / (n + 3) for n in range(_TOPICS)))
    rushes = []
    for _ in range(_RUSHES):
        start = chance.uniform(0, MINUTES * 60)
        rushes.append((start, start + chance.uniform(*_RUSH) * 60, chance.choice(topics)))
    times = sorted(chance.uniform(0, MINUTES * 60) for _ in range(posts))
    order = sorted(times, key=lambda at: at + chance.uniform(0, _DISORDER_SECONDS))
    files: dict[int, list[str]] = {}
    for place, at in enumerate(order):
        tags = chance.choices(topics, cum_weights=weights, k=chance.randint(1, 2))
        hot = [topic for start, end, topic in rushes if start <= at < end]
        if hot and chance.random() < 0.3:
            tags.append(chance.choice(hot))
        words = chance.choices(_WORDS, k=5) + [f"#{tag}" for tag in tags]
        chance.shuffle(words)
        when = datetime.fromtimestamp(BEGIN.timestamp() + at, UTC).isoformat(
            timespec="milliseconds"
        )
        number = int(times[place] / 60 / FILE_MINUTES)
        files.setdefault(number, []).append(f"{when}\t{' '.join(words)}\n")
    for number, lines in files.items():
        file = folder / f"{number:04}.txt"
        file.write_text("".join(lines))
        # Spark takes files in the order of these times
        written = BEGIN.timestamp() + (number + 1) * FILE_MINUTES * 60
        os.utime(file, (written, written))
