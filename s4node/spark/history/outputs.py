"""Where events go that PEs put on output streams while they run over history.

Rules
- What would fail after the run fails before it: a folder that exists, or a log that does not take
  the rows.
- A log takes the events of a savepoint's name once, so a command that has failed may run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from s4node.app.app import App
from s4node.app.stream import OutputStream
from s4node.config.config import Config
from s4node.errors import ConfigError, ConnectionRefused
from s4node.net.certificates.credentials import OPTIONS
from s4node.spark.addresses import is_address
from s4node.spark.connection import NoAnswerError
from s4node.spark.history.bootstrap import Bootstrapped
from s4node.spark.history.event_batches import columns_of
from s4node.spark.sink import batch_writer


@dataclass(frozen=True)
class Outputs:
    """``place`` is the address of a log with streams of these names, or a folder for Parquet files
    of each stream; ``name`` is that of the savepoint."""

    place: str
    name: str
    config: Config

    def streams_of(self, app: App) -> list[str]:
        """The app's output streams; raises ConfigError if the place does not take their events."""
        streams = [each for each in app.streams.values() if isinstance(each, OutputStream)]
        if not streams:
            raise ConfigError(f"app {app.name!r} has no output streams; leave --outputs out")
        for stream in streams:
            if len(stream.types) != 1:
                continue  # which is reported with all else that does not fit
            if is_address(self.place):
                options = self._options(app, stream.name)
                try:
                    batch_writer(options, columns_of(stream.types[0]), overwrite=False)
                except NoAnswerError as error:
                    raise ConnectionRefused(
                        f"{error.fact}; start the node of the log, or correct --outputs"
                    ) from error
            elif Path(self.place, stream.name).exists():
                raise ConfigError(
                    f"the folder {Path(self.place, stream.name)} exists; name another with "
                    f"--outputs, or remove it"
                )
        return [each.name for each in streams]

    def deliver(self, found: Bootstrapped, streams: Sequence[str]) -> Iterator[str]:
        """Write or send the events of these streams; yields a line for each."""
        for name in streams:
            rows = found.output(name)
            if is_address(self.place):
                options = self._options(found.app, name)
                rows.write.format("s4").mode("append").options(**options).save()
                yield f"what was put on {name} is sent to {self.place}"
            else:
                rows.write.parquet(str(Path(self.place, name)))
                yield f"what was put on {name} is in {Path(self.place, name)}"

    def _options(self, app: App, stream: str) -> dict[str, str]:
        cls = app.streams[stream].types[0].cls
        of_tls = {e.name: e.text for e in self.config.items() if e.name in OPTIONS and e.text}
        return {
            "address": self.place,
            "stream": stream,
            "type": f"{cls.__module__}:{cls.__qualname__}",
            "job": f"bootstrap/{app.name}/{self.name}/{stream}",
            **of_tls,
        }
