"""Join: page views and their users' profiles meet in the task of the user, and go out as visits.

Both inputs are keyed by user, so whatever numbers of partitions they have, a user's views and
profile come to one task, and what it knows of the user is a dictionary. Views of a user without a
profile wait for it; a profile without a city is refused (see careful.py).

Have the profiles read first, from their beginning::

    s4 run apps/join/app.py -p streams.profiles.samza.bootstrap=true \\
                            -p streams.profiles.samza.offset.default=oldest
"""

from apps.join.careful import Careful, Refused
from s4node import Collector, Coordinator, Envelope, Event, TaskApp


class PageView(Event):
    user: str
    page: str


class Profile(Event):
    user: str
    city: str


class Visit(Event):
    user: str
    page: str
    city: str


class Join:
    def __init__(self) -> None:
        self.cities: dict[str, str] = {}
        self.waiting: dict[str, list[PageView]] = {}

    def process(self, envelope: Envelope, collector: Collector, coordinator: Coordinator) -> None:
        event = envelope.message
        if isinstance(event, Profile):
            if not event.city:
                raise ValueError(f"the profile of {event.user} names no city")
            self.cities[event.user] = event.city
            views = self.waiting.pop(event.user, [])
        elif event.user in self.cities:
            views = [event]
        else:
            self.waiting.setdefault(event.user, []).append(event)
            views = []
        for view in views:
            collector.send("visits", Visit(view.user, view.page, self.cities[view.user]))


class JoinApp(TaskApp):
    """Inputs "page-views" and "profiles", outputs "visits" and "refused"."""

    def __init__(self) -> None:
        super().__init__("join", lambda: Careful(Join()))

    def on_init(self) -> None:
        self.create_input_stream("page-views", key="user", types=PageView, system="log")
        self.create_input_stream("profiles", key="user", types=Profile, system="log")
        self.create_output_stream("visits", key="user", types=Visit)
        self.create_output_stream("refused", types=Refused)
