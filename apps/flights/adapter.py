"""The adapter: takes Spark's rows and sends them on as flights, each to its route's partition."""

from __future__ import annotations

from apps.flights.events import Flight, Row
from s4node import AdapterApp, ProcessingElement


class Convert(ProcessingElement):
    """Makes flights of rows. It has no state, so one instance in a partition does."""

    def on_event(self, row: Row) -> None:
        self.app.remote_stream.put(
            Flight(
                row.carrier,
                f"{row.origin}-{row.dest}",
                row.tailnum,
                row.dep_delay,
                row.arr_delay,
                row.time,
            )
        )


class FlightsAdapter(AdapterApp):
    """From the stream "rows" to the stream that ``s4.adapter.output.stream`` names."""

    def on_init(self) -> None:
        self.remote_stream_key_finder = "route"
        self.remote_stream_types = (Flight,)
        convert = self.create_pe(Convert)
        convert.set_singleton()
        self.create_input_stream("rows", convert)
        super().on_init()
