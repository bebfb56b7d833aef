"""The mean time of page loads, an app that prefers a sample in time to every event too late.

Run it with the sampling executor on its input::

    s4 run apps/sampling/app.py -p s4.stream.loads.executor=apps.sampling.executor:Sample
"""

from s4node import App, Event, ProcessingElement


class Load(Event):
    page: str
    millis: float


class Mean(ProcessingElement):
    count: int = 0
    total: float = 0.0

    def on_event(self, load: Load) -> None:
        self.count += 1
        self.total += load.millis


app = App("sampling")
app.create_input_stream("loads", app.create_pe(Mean), key="page")
