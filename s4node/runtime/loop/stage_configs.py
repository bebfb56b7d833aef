"""The configuration of an app's stages: the settings of each, and whether it can obey them.

Rules
- A setting for one stream wins over the stage's setting, and both win over ``set_parallelism``.
- A stage of a durable stream, or of an input that can be replayed, drops nothing. What an app with
  state sends leaves with its commits, so its senders neither throttle nor drop.
- All stages are checked before the app starts, and before it replaces an earlier version; also
  those that are made later.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from s4node.app.app import App
from s4node.app.stream import InputStream, OutputStream
from s4node.config import settings
from s4node.config.config import Config
from s4node.config.key import StageKey
from s4node.errors import ConfigError
from s4node.logger import get_logger
from s4node.stages.executors import (
    DESERIALIZER,
    REMOTE_SENDER,
    SENDER,
    STREAM,
    StageSettings,
    executor_of,
)

log = get_logger("s4node.runtime")

T = TypeVar("T")


class StageConfigs:
    """The configuration of the stages of ``app``, which has ``durable`` streams, and tasks that
    keep state if it ``keeps``."""

    def __init__(
        self, app: App, config: Config, durable: Collection[str] = (), *, keeps: bool = False
    ) -> None:
        self._app = app
        self._config = config
        self._keeps = keeps
        self._lossless = dict.fromkeys(durable, "durable") | {
            name: "replayable"
            for name, stream in app.streams.items()
            if isinstance(stream, InputStream) and not stream.is_live
        }

    def check_executors(self) -> None:
        """Raise ConfigError if a stage has no such executor, or may not have it."""
        for name, stream in self._app.streams.items():
            is_output = isinstance(stream, OutputStream)
            for stage in (REMOTE_SENDER,) if is_output else (DESERIALIZER, STREAM, SENDER):
                executor_of(self.settings(stage, name))
        if self._keeps:
            self._check_senders()

    def settings(self, stage: str, stream: str) -> StageSettings:
        return StageSettings(
            stage,
            stream,
            self._value(settings.STAGE_EXECUTOR, stage, stream),
            self._value(settings.STAGE_SIZE, stage, stream),
            self._value(settings.STAGE_BYTES, stage, stream),
            self._value(settings.STAGE_MAX_RATE, stage, stream),
            self._lossless.get(stream, "") if stage in (DESERIALIZER, STREAM) else "",
            self._key(settings.STAGE_EXECUTOR, stage, stream),
        )

    def _check_senders(self) -> None:
        """Raise ConfigError for a sender that is to throttle or drop what commits release."""
        for name, stream in self._app.streams.items():
            stage = REMOTE_SENDER if isinstance(stream, OutputStream) else SENDER
            executor = self._value(settings.STAGE_EXECUTOR, stage, name)
            key = self._key(settings.STAGE_EXECUTOR, stage, name)
            origin = self._config.origin(key)
            if executor != "block" and origin != "default":
                where = "" if origin == "code" else f" ({origin})"  # code: of a deployed app
                raise ConfigError(
                    f"{key} = {executor}{where}: app {self._app.name!r} keeps state, so what "
                    f"its tasks send leaves with their commits, and nothing of it is throttled or "
                    f"dropped; set s4.{stage}.{name}.executor = block"
                )

    def parallelism(self, stream: str) -> int:
        """The number of handlers of a stream that may be in flight in a partition."""
        found = self._app.streams[stream]
        key = settings.STREAM_PARALLELISM
        wanted = self._value(key, STREAM, stream) or found.parallelism
        in_order = any(stream in each.in_order_of for each in self._app.streams.values())
        single = in_order or found.key is None or any(pe.singleton for pe in found.targets)
        if wanted > 1 and single:
            if found.parallelism > 1 or self._named(key, STREAM, stream):
                log.warning(
                    "parallelism needs a key, no singleton and no order='time'; handled one by one",
                    stream=stream,
                )
            return 1
        return wanted

    def parallel(self) -> dict[str, int]:
        """The streams that may have more than one handler in flight, with how many."""
        fed = [s.name for s in self._app.streams.values() if not isinstance(s, OutputStream)]
        return {name: n for name in fed if (n := self.parallelism(name)) > 1}

    def _named(self, key: StageKey[T], stage: str, stream: str) -> bool:
        return stream in self._config.matching(key.of[stage].pattern)

    def _key(self, key: StageKey[T], stage: str, stream: str) -> str:
        """The name of the setting that applies to a stream."""
        setting, pattern = key.of[stage]
        return stream.join(pattern.ends) if self._named(key, stage, stream) else setting.name

    def _value(self, key: StageKey[T], stage: str, stream: str) -> T:
        setting, pattern = key.of[stage]
        return self._config.matching(pattern).get(stream, self._config[setting])
