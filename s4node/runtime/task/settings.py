"""The settings of a task: how many events at a time, in which order, what is due when. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from s4node.config import settings
from s4node.config.config import Config

DURABLE_COMMIT = 1.0
"""Seconds between commits where others wait for them and nothing is set."""


@dataclass(frozen=True)
class TaskSettings:
    """Times in seconds, 0 where there is none."""

    concurrency: int = 1
    by_key: bool = False
    window: float = 0.0
    commit: float = 0.0
    prompt: float = 0.0
    """Between commits while others wait for them; 0 for no oftener than others."""
    async_commit: bool = False
    callback_timeout: float = 0.0
    ignored: frozenset[str] = frozenset()
    threads: int = 0
    exchanging: bool = False
    """Tasks send each other events that belong to what they keep."""

    @classmethod
    def of(cls, config: Config, *, exchanging: bool = False) -> TaskSettings:
        """As configured. An interval between commits that is set is that of all of them."""
        chosen = config.origin(settings.TASK_COMMIT_MS) != "default"
        ignored = config[settings.TASK_IGNORED_EXCEPTIONS]
        return cls(
            config[settings.TASK_MAX_CONCURRENCY],
            config[settings.TASK_ORDER] == "key",
            config[settings.TASK_WINDOW_MS],
            config[settings.TASK_COMMIT_MS],
            0.0 if chosen else DURABLE_COMMIT,
            config[settings.TASK_ASYNC_COMMIT],
            config[settings.TASK_CALLBACK_TIMEOUT_MS],
            frozenset(ignored),
            config[settings.THREAD_POOL_SIZE],
            exchanging,
        )
