"""The stream for dead letters: an output stream of the app, or a stream of a system.

Rules
- If there is no such stream, the container does not start.
- A dead letter has a name, the same for every owner of its task, so a crash stores it once in a
  system that takes names.
"""

from __future__ import annotations

import zlib

from s4node.app.app import App
from s4node.app.stream import OutputStream
from s4node.config import settings
from s4node.config.config import Config
from s4node.errors import ConfigError
from s4node.events.event import LIVE, GenericEvent
from s4node.runtime.outputs.outputs import Outputs
from s4node.systems.registry import Systems


class DeadLetterStream:
    """The stream that ``task.dead.letter.stream`` names; false if that is not set.

    ``place`` is its system and name, None for an output stream of ``app``. The ``partitions`` of a
    system's stream are set before the first dead letter. Raises ConfigError for a bad setting.
    """

    def __init__(self, app: App, config: Config, systems: Systems) -> None:
        self.partitions = 0
        self._name = config[settings.DEAD_LETTERS]
        self._cluster = config[settings.CLUSTER_NAME]
        self._app = app
        self._systems = systems
        self.place = self._checked_place() if self._name else None

    def __bool__(self) -> bool:
        return bool(self._name)

    def _checked_place(self) -> tuple[str, str] | None:
        name = self._name
        stream = self._app.streams.get(name)
        if isinstance(stream, OutputStream):
            if not stream.is_live:
                raise ConfigError(
                    f"{settings.DEAD_LETTERS.name} = {name}: the stream leads to system "
                    f"{stream.system!r}, and takes only what tasks put; name another output "
                    f"stream, or a stream of the log"
                )
            types = [kind.cls for kind in stream.types]
            if types and GenericEvent not in types:
                raise ConfigError(
                    f"{settings.DEAD_LETTERS.name} = {name}: the stream carries "
                    f"{', '.join(cls.__name__ for cls in types)} only; declare it with "
                    f"types=GenericEvent"
                )
            return None
        system, _, rest = name.partition(".")
        if not rest or system == LIVE:
            known = [s.name for s in self._app.streams.values() if isinstance(s, OutputStream)]
            raise ConfigError(
                f"{settings.DEAD_LETTERS.name} = {name} is neither an output stream of app "
                f"{self._app.name!r}, which has {', '.join(known) or 'none'}, nor a system.stream"
            )
        self._systems[system]  # raises if there is none
        return system, rest

    async def keep(self, outputs: Outputs, dead_letter: GenericEvent) -> None:
        """Store a dead letter; return once it is safe."""
        if self.place is None:
            stream = self._app.streams[self._name]
            assert isinstance(stream, OutputStream)
            await stream.send(dead_letter)
            await outputs.wait_settled()
            return
        system, rest = self.place
        home = self._systems[system]
        partition = dead_letter.partition % self.partitions
        if hasattr(home, "append_once"):
            await home.append_once(rest, partition, dead_letter, self._name_of(dead_letter))
        else:  # an author's system may lack it; then a crash may store the letter twice
            await home.append(rest, partition, [dead_letter])

    def _name_of(self, dead_letter: GenericEvent) -> str:
        place = f"{dead_letter.origin}:{dead_letter.offset}"
        if dead_letter.offset < 0:
            place += f" {zlib.crc32(dead_letter.raw):08x}"
        return f"dead letter {self._cluster}/{dead_letter.app}/{dead_letter.task}/{place}"
