"""The pipeline of a container: its stages as configured, and who must wait for whom.

Rules
- A setting of one stream wins over the stage's; the app's ``set_parallelism`` counts where the
  configuration says nothing.
- A stage of a stream in a partition, or of a stream on its way to other nodes or clusters, that
  makes tasks wait is watched from when it is full until it has room, or is gone; the order of
  processing does the rest.
- What can be known at the start to do nothing is told once: settings of streams that the app does
  not have, and handlers of PEs that nothing would call.
- A stream that feeds itself is given a spill as soon as that is known, and it is said once. Until
  then its stages are remembered, but for those that are gone. The way of a stream to other nodes is
  given one when a timer has put more on it than it can hold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, Protocol

from s4node.app import graph
from s4node.app.app import App
from s4node.app.stream import InputStream, OutputStream
from s4node.config import settings
from s4node.config.config import Config
from s4node.config.paths import full_path
from s4node.logger import get_logger
from s4node.net.egress.spill import Spill
from s4node.net.egress.stream_types import StreamTypes
from s4node.runtime.loop.spill_file import SpillFile
from s4node.stages.backpressure import Edges, Order
from s4node.stages.executors import (
    DESERIALIZER,
    REMOTE_SENDER,
    SENDER,
    STREAM,
    Executor,
    StageSettings,
    executor_of,
)
from s4node.stages.stage import Gauge, Overflow, Stage

log = get_logger("s4node.runtime")


class Holder(Protocol):
    """What tasks may have to wait for."""

    @property
    def holds(self) -> bool:
        """Whether they are to wait now."""
        ...


class _Gone:
    """In the place of a stage that is no more."""

    holds = False


_GONE = _Gone()


class Pipeline:
    """The stages of ``app`` in one container. ``edges`` are those found before it runs.

    Nothing is dropped of the streams that are ``durable``; raises ConfigError where it would be.
    """

    def __init__(
        self,
        app: App,
        config: Config,
        edges: Mapping[str, Iterable[str]] | None = None,
        durable: Collection[str] = (),
    ) -> None:
        self._durable = frozenset(durable)
        self.order = Order(Edges(edges))
        self._app = app
        self._config = config
        self._full: dict[tuple[str, Hashable], Holder] = {}
        self._queues: dict[str, list[Stage]] = {}  # that may need a spill once it is known
        self._files: list[SpillFile] = []  # of spills
        self.overflow_of: Callable[[str, int], Overflow] | None = None  # of stages of tasks
        self._logged: set[frozenset[str]] = set()
        self.deserializers = {
            name: Gauge(self.settings(DESERIALIZER, name))
            for name, stream in app.streams.items()
            if not isinstance(stream, OutputStream)
        }
        for name in self._durable:
            executor_of(self.settings(STREAM, name))  # raises where it drops events
        self._tell_cycles()
        self._tell_strays()
        self._tell_uncalled()

    # -- making ------------------------------------------------------------------------------

    def settings(self, stage: str, stream: str) -> StageSettings:
        """What is configured for a stage of a stream."""
        return StageSettings(
            stage,
            stream,
            self._value(stage, stream, "executor"),
            self._value(stage, stream, "workQueueSize"),
            self._value(stage, stream, "workQueueBytes"),
            self._value(stage, stream, "maxRate"),
            stream in self._durable and stage in (DESERIALIZER, STREAM),
            self._key(stage, stream, "executor"),
        )

    def parallelism(self, stream: str) -> int:
        """How many handlers of a stream may be outstanding in a partition."""
        found = self._app.streams[stream]
        wanted: int = self._value(STREAM, stream, "parallelism") or found.parallelism
        if wanted > 1 and (found.key is None or any(pe.singleton for pe in found.targets)):
            if found.parallelism > 1 or self._named(STREAM, stream, "parallelism"):
                log.warning(
                    "parallelism takes a key and no singleton; handled one by one", stream=stream
                )
            return 1
        return wanted

    def parallel(self) -> dict[str, int]:
        """The streams of which more than one handler may be outstanding."""
        fed = [s.name for s in self._app.streams.values() if not isinstance(s, OutputStream)]
        return {name: n for name in fed if (n := self.parallelism(name)) > 1}

    def _named(self, stage: str, stream: str, word: str) -> bool:
        return stream in self._config.matching(settings.STAGE_KEYS[stage][word][1])

    def _key(self, stage: str, stream: str, word: str) -> str:
        """The key that says what is set for a stream."""
        setting, pattern = settings.STAGE_KEYS[stage][word]
        return stream.join(pattern.ends) if self._named(stage, stream, word) else setting.name

    def _value(self, stage: str, stream: str, word: str) -> Any:
        setting, pattern = settings.STAGE_KEYS[stage][word]
        return self._config.matching(pattern).get(stream, self._config[setting])

    def stages_of(self, partition: int) -> dict[str, Stage]:
        """The stages of all streams in a partition."""
        return {
            name: self._queue(name, STREAM, partition)
            for name, stream in self._app.streams.items()
            if not isinstance(stream, OutputStream)
        }

    def stage_of(self, stream: str, partition: int) -> Stage:
        """A stage for events of a stream that are read for a partition."""
        return self._queue(stream, STREAM, partition)

    def sender(self, stream: str, *, remote: bool) -> Stage:
        """The stage of a stream's events that leave."""
        if remote:  # an output stream feeds nobody here, so it never needs a spill
            return Stage(self.settings(REMOTE_SENDER, stream))
        return self._queue(stream, SENDER, None)

    def drop(self, stages: Iterable[Stage]) -> None:
        """These stages of a partition are no more: another container has it."""
        for stage in stages:
            self._queues[stage.settings.stream].remove(stage)

    def _queue(self, stream: str, stage: str, partition: int | None) -> Stage:
        queue = Stage(self.settings(stage, stream), partition)
        self._queues.setdefault(stream, []).append(queue)
        if self.order.edges.group(stream):
            self.spill(stream, queue)
        return queue

    def limits(self, stages: dict[str, Stage]) -> dict[str, tuple[Executor, ...]]:
        """The executors that limit how fast events leave these stages, by stream."""
        found: dict[str, tuple[Executor, ...]] = {}
        for name, stage in stages.items():
            executors = [stage.executor]
            if isinstance(self._app.streams[name], InputStream):
                executors.append(self.deserializers[name].executor)
            limiting = tuple(executor for executor in executors if _limits(executor))
            if limiting:
                found[name] = limiting
        return found

    # -- who waits for whom ------------------------------------------------------------------

    def put(self, source: str, stream: str) -> None:
        """Handlers of ``source`` have put on ``stream``."""
        if (source, stream) not in self.order.edges.known and self.order.learn(source, stream):
            self._tell_cycles()

    def watch(self, stream: str, place: Hashable, holder: Holder) -> None:
        """Something has been put into a stage: is it full?"""
        if holder.holds and self._full.get((stream, place)) is not holder:
            self._full[stream, place] = holder  # one of before may have had the place
            self.order.filled(stream, place)

    def settle(self) -> bool:
        """Look at the stages that were full; True if somebody who was held may go on."""
        freed = False
        for (stream, place), holder in list(self._full.items()):
            if not holder.holds:
                del self._full[stream, place]
                freed |= self.order.emptied(stream, place)
        return freed

    def forget(self, stream: str, place: Hashable) -> None:
        """A stage is gone; tasks that it held go on with the next ``settle``."""
        if (stream, place) in self._full:
            self._full[stream, place] = _GONE

    @property
    def strained(self) -> bool:
        """Whether some stage makes tasks wait."""
        return bool(self._full)

    def _tell_strays(self) -> None:
        """Settings of streams that the app does not have: another app's, or misspelt."""
        strays = {
            pattern.name.replace("<stream>", stream): stream
            for pattern in settings.STREAM_KEYS
            for stream in self._config.matching(pattern)
            if stream not in self._app.streams
        }
        if not strays:
            return
        from difflib import get_close_matches  # slow to load, and only mistakes use it

        told = []
        for key, stream in strays.items():
            near = get_close_matches(stream, self._app.streams, 1)
            meant = f": did you mean {near[0]}?" if near else ""
            told.append(f"{key} ({self._config.origin(key)}{meant})")
        log.warning(
            "settings of streams that the app does not have do nothing",
            app=self._app.name,
            settings=", ".join(told),
            streams=", ".join(self._app.streams),
        )

    def _tell_uncalled(self) -> None:
        """Handlers that look as if they were called: an author would wait for them for ever."""
        for pe, handler, missing in graph.uncalled(self._app):
            log.warning(
                "a handler is never called: what sets when is missing in on_init",
                app=self._app.name,
                pe=pe,
                handler=handler,
                missing=missing,
            )

    def _tell_cycles(self) -> None:
        for group in self.order.edges.groups:
            if group in self._logged:
                continue
            self._logged.add(group)
            path = " -> ".join(self.order.edges.cycle(min(group)))
            log.warning(
                "streams feed themselves; what their stages cannot hold waits on disk",
                path=path,
                app=self._app.name,
            )
            for stream in group:
                for queue in self._queues.get(stream, ()):
                    self.spill(stream, queue)

    def spill(self, stream: str, queue: Stage) -> None:
        """From now on what a stage cannot hold waits on disk, unless its executor drops it."""
        if queue.overflow is not None or queue.executor.waits_from > 1:
            return
        if self.overflow_of is not None and queue.partition is not None:
            queue.overflow = self.overflow_of(stream, queue.partition)
        else:
            named = self._config[settings.SPILL_FOLDER]
            folder = full_path(named, settings.SPILL_FOLDER.name) if named else None
            types = StreamTypes(stream, [kind.cls for kind in self._app.streams[stream].types])
            file = SpillFile(stream, folder)
            queue.overflow = Spill(self._app.name, types, file)
            self._files.append(file)

    def close(self) -> None:
        """Give up the files."""
        for file in self._files:
            file.close()


def _limits(executor: Executor) -> bool:
    return type(executor).allowance is not Executor.allowance
