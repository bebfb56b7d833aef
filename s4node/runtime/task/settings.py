"""The settings of a task: how many events at a time, in which order, what is due when. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from s4node.config import settings
from s4node.config.config import Config


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
    def of(cls, config: Config, *, exchanging: bool = False, keeps: bool = True) -> TaskSettings:
        """As configured; tasks that keep nothing have nothing to commit."""
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
