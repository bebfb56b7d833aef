"""The file of sinks in a log's folder: a row for each, which a command or its writer removes.

Rules
- A write is on disk when it returns, whatever ``s4.log.sync`` says: a power cut may lose rows of
  the log, but no decision.
- Calls block. A failure raises SinkError, and leaves the row as before or as written.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from s4node import disk
from s4node.errors import SinkError
from s4node.events.schema import UNREADABLE
from s4node.log.sink.decision import Decision, Sink
from s4node.sqlite import Database

NAME = "sinks.sqlite"
"""The name of the file in the log's folder."""

_APPLICATION = 0x5334534B  # "S4SK"
_FORMAT = 2
_SCHEMA = """
CREATE TABLE sinks (
    id TEXT NOT NULL, stream TEXT NOT NULL, batch INTEGER NOT NULL, events INTEGER NOT NULL,
    total INTEGER NOT NULL, decided_ms INTEGER NOT NULL, open BLOB, PRIMARY KEY (id, stream)
) WITHOUT ROWID
"""
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Decision)


class SinkFile(Database):
    """The file in the folder of a log, which is created if it is missing."""

    def __init__(self, folder: Path) -> None:
        path = folder / NAME
        new = not path.exists()
        super().__init__(path, patience=1.0)
        with self.explained():
            self.write_ahead()
            self.execute("PRAGMA synchronous = FULL")
            self.waits = True
            with self.transaction():
                if self.is_empty():
                    self.make(_APPLICATION, _FORMAT, _SCHEMA)
            if self.marks() != (_APPLICATION, _FORMAT):
                raise SinkError(
                    f"{path} is not a file of sinks of format {_FORMAT}; put back a copy of it, or "
                    f"use the s4node that wrote it"
                )
        if new:
            disk.sync(folder)

    def explain(self, error: sqlite3.Error) -> Exception:
        return SinkError(
            f"{self.path} cannot be used ({error}); check its disk and permissions, then write the "
            f"batch again"
        )

    def sinks(self) -> list[Sink]:
        with self.explained():
            rows = self.execute(
                "SELECT id, stream, batch, events, total, decided_ms, open FROM sinks"
            ).fetchall()
        try:
            return [
                Sink(*row)._replace(open=None if decision is None else _decoder.decode(decision))
                for *row, decision in rows
            ]
        except (*UNREADABLE, TypeError) as error:
            raise SinkError(f"{self.path} is damaged ({error}); put back a copy of it") from error

    def put(self, sink: Sink) -> None:
        decision = None if sink.open is None else _encoder.encode(sink.open)
        with self.transaction():
            self.execute(
                "INSERT OR REPLACE INTO sinks VALUES (?,?,?,?,?,?,?)", (*sink[:6], decision)
            )

    def remove(self, sink: Sink) -> None:
        with self.transaction():
            self.execute("DELETE FROM sinks WHERE id = ? AND stream = ?", sink[:2])
