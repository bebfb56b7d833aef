"""The settings of a task: concurrency, order, windows, commits and timeouts. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from s4node.config import settings
from s4node.config.config import Config


@dataclass(frozen=True)
class TaskSettings:
    """The settings of a task; times are in seconds, 0 means never."""

    concurrency: int = 1
    by_key: bool = False
    window: float = 0.0
    commit: float = 0.0
    async_commit: bool = False
    callback_timeout: float = 0.0
    ignored: frozenset[str] = frozenset()
    threads: int = 0
    exchanging: bool = False
    """Tasks send each other events that are part of their commits."""

    @classmethod
    def from_config(
        cls, config: Config, *, exchanging: bool = False, keeps: bool = True
    ) -> TaskSettings:
        """The settings from a configuration; a task that keeps no state never commits."""
        ignored = config[settings.TASK_IGNORED_EXCEPTIONS]
        return cls(
            config[settings.TASK_MAX_CONCURRENCY],
            config[settings.TASK_ORDER] == "key",
            config[settings.TASK_WINDOW_MS],
            config[settings.TASK_COMMIT_MS] if keeps else 0.0,
            config[settings.TASK_ASYNC_COMMIT],
            config[settings.TASK_CALLBACK_TIMEOUT_MS],
            frozenset(ignored),
            config[settings.THREAD_POOL_SIZE],
            exchanging,
        )
