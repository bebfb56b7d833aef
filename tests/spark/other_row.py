"""Another event class of the name of tests.spark_rows.Row."""

from __future__ import annotations

from s4node import Event


class Row(Event):
    user: str
    n: str
