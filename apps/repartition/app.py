"""Repartition: copy a stream, with another key and another number of partitions.

A stream's number of partitions never changes. For another number, or another key, copy the stream
with a job like this one. It reads page views partitioned by page, and writes them partitioned by
user::

    s4 node demo -p s4.log.folder=log &
    s4 log create page-views --partitions 4 --key page
    s4 log create page-views-by-user --partitions 12 --key user
    s4 run apps/repartition/app.py -p systems.log.address=tcp://127.0.0.1:12000 \\
        -p streams.page-views.samza.offset.default=oldest \\
        -p s4.stream.page-views-by-user.consumers=log \\
        -p s4.cluster.log.address=tcp://127.0.0.1:12000

The job reads events of every type as GenericEvents, and sends them so.
"""

from s4node import Collector, Coordinator, Envelope, GenericEvent, TaskApp


class Repartition:
    def process(self, envelope: Envelope, collector: Collector, coordinator: Coordinator) -> None:
        collector.send("page-views-by-user", envelope.message)


class RepartitionApp(TaskApp):
    """Input "page-views", output "page-views-by-user"."""

    def __init__(self) -> None:
        super().__init__("repartition", Repartition, inputs=["log.page-views"])

    def on_init(self) -> None:
        self.create_output_stream("page-views-by-user", key="user", types=GenericEvent)
