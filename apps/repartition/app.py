"""Repartition: page views come by page and go out by user, with another number of partitions.

A stream's number of partitions never changes. One that needs another number, or another key, is
written anew by a job like this one::

    s4 log create page-views --partitions 4 --key page
    s4 log create page-views-by-user --partitions 12 --key user

The views of a page are in order before, those of a user afterwards: as far as one page goes.
"""

from s4node import Collector, Coordinator, Envelope, Event, TaskApp


class PageView(Event):
    page: str
    user: str
    number: int = 0


class Repartition:
    def process(self, envelope: Envelope, collector: Collector, coordinator: Coordinator) -> None:
        collector.send("page-views-by-user", envelope.message)


class RepartitionApp(TaskApp):
    """Input "page-views", output "page-views-by-user"."""

    def __init__(self) -> None:
        super().__init__("repartition", Repartition)

    def on_init(self) -> None:
        self.create_input_stream("page-views", types=PageView, system="log")
        self.create_output_stream("page-views-by-user", key="user", types=PageView)
