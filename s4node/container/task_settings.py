"""The settings of a task: how many events at a time, in which order, what is due when. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from s4node import config as keys
from s4node.config import Config

DURABLE_COMMIT = 1.0
"""Seconds between commits where nothing is set and others wait for them."""


@dataclass(frozen=True)
class TaskSettings:
    """Times in seconds, 0 where there is none."""

    concurrency: int = 1
    by_key: bool = False
    window: float = 0.0
    commit: float = 0.0
    async_commit: bool = False
    callback_timeout: float = 0.0
    ignored: frozenset[str] = frozenset()
    threads: int = 0
    exchanging: bool = False
    """Tasks send each other events that belong to what they keep."""

    @classmethod
    def of(cls, config: Config, *, durable: bool = False, exchanging: bool = False) -> TaskSettings:
        """As configured. Where durable streams lead to tasks, or out of the app, others wait for
        commits; and where tasks are ``exchanging`` events, those leave with commits."""
        commit = config[keys.TASK_COMMIT_MS]
        if (durable or exchanging) and config.origin(keys.TASK_COMMIT_MS) == "default":
            commit = DURABLE_COMMIT
        ignored = config[keys.TASK_IGNORED_EXCEPTIONS]
        return cls(
            config[keys.TASK_MAX_CONCURRENCY],
            config[keys.TASK_ORDER] == "key",
            config[keys.TASK_WINDOW_MS],
            commit,
            config[keys.TASK_ASYNC_COMMIT],
            config[keys.TASK_CALLBACK_TIMEOUT_MS],
            frozenset(ignored),
            config[keys.THREAD_POOL_SIZE],
            exchanging,
        )
