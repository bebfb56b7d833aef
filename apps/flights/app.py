"""The main app: delay statistics for each carrier, route and aircraft.

Flights come in keyed by route. The route's PE counts them and puts them on two internal streams,
which bring them to the PEs of their carrier and their aircraft, wherever those live. Every half
second each PE whose figures have changed reports them.
"""

from __future__ import annotations

from apps.flights.events import LATE_MINUTES, Flight, Report
from s4node import App, OutputStream, ProcessingElement, Stream

REPORT_SECONDS = 0.5


class DelayStatistics(ProcessingElement):
    """The figures of one key. ``kind`` and ``reports`` are set on the prototype."""

    kind = ""
    reports: OutputStream

    flights: int = 0
    cancelled: int = 0
    delay_count: int = 0
    delay_sum: int = 0
    delay_max: int | None = None
    delay_min: int | None = None
    late: int = 0
    reported: int = 0

    def on_event(self, flight: Flight) -> None:
        self.flights += 1
        if flight.dep_delay is None:
            self.cancelled += 1
        delay = flight.arr_delay
        if delay is None:
            return
        self.delay_count += 1
        self.delay_sum += delay
        if self.delay_max is None or delay > self.delay_max:
            self.delay_max = delay
        if self.delay_min is None or delay < self.delay_min:
            self.delay_min = delay
        if delay > LATE_MINUTES:
            self.late += 1

    def on_time(self) -> None:
        """Report the figures if they have changed."""
        if self.reported == self.flights:
            return
        self.reported = self.flights
        self.reports.put(
            Report(
                self.kind,
                str(self.key),
                self.flights,
                self.cancelled,
                self.delay_count,
                self.delay_sum,
                self.delay_max,
                self.delay_min,
                self.late,
            )
        )


class RouteStatistics(DelayStatistics):
    """A route's figures; passes each flight on to its carrier and its aircraft."""

    by_carrier: Stream
    by_aircraft: Stream

    def on_event(self, flight: Flight) -> None:
        """Count one flight and pass it on."""
        super().on_event(flight)
        self.by_carrier.put(flight)
        self.by_aircraft.put(flight)


class FlightsApp(App):
    """Input stream "flights", output stream "reports"."""

    def on_init(self) -> None:
        reports = self.create_output_stream("reports", types=Report)
        carrier = self.create_pe(DelayStatistics, name="carrier")
        aircraft = self.create_pe(DelayStatistics, name="aircraft")
        route = self.create_pe(RouteStatistics, name="route")
        for kind, pe in (("carrier", carrier), ("route", route), ("aircraft", aircraft)):
            pe.kind = kind
            pe.reports = reports
            pe.set_timer_interval(REPORT_SECONDS)
        route.by_carrier = self.create_stream("by_carrier", carrier, key="carrier")
        route.by_aircraft = self.create_stream("by_aircraft", aircraft, key="tailnum")
        self.create_input_stream("flights", route, key="route")
