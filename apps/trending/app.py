"""Trending topics: every minute, the ten that were mentioned most in the last five.

The first PE counts a topic's mentions in overlapping windows. The second has a window over the
results of these windows, so that each minute's list is complete before it is put.
"""

from __future__ import annotations

from s4node import App, Event, OutputStream, ProcessingElement, Stream, hopping, tumbling

PLACES = 10
LATENESS = 360
"""Seconds by which mentions may be out of order: longer than a file of posts."""


class Mention(Event):
    """A topic in a post; ``at`` is the post's time, in milliseconds since 1970."""

    topic: str
    at: int


class Mentions(Event):
    """How often a topic was mentioned in five minutes; ``at`` is the last millisecond of these."""

    topic: str
    at: int
    count: int


class Trend(Event):
    """A topic's place in the list of a minute."""

    at: int
    place: int
    topic: str
    count: int


class Topic(ProcessingElement):
    """The mentions of a topic in a window."""

    mentions: Stream
    count: int = 0

    def on_event(self, _mention: Mention) -> None:
        self.count += 1

    def on_window(self) -> None:
        self.mentions.put(Mentions(str(self.key), round(self.window.last * 1000), self.count))

    def merge(self, later: Topic) -> None:
        """Add the mentions of a later part of the window."""
        self.count += later.count


class Trending(ProcessingElement):
    """The topics of a minute's list, with the negative number of their mentions."""

    trends: OutputStream
    topics: list[tuple[int, str]] = []

    def on_event(self, mentions: Mentions) -> None:
        """Keep the topics with the most mentions; of two, the one that comes first."""
        self.topics = sorted([*self.topics, (-mentions.count, mentions.topic)])[:PLACES]

    def on_window(self) -> None:
        at = round(self.window.last * 1000)
        for place, (count, topic) in enumerate(self.topics, 1):
            self.trends.put(Trend(at, place, topic, -count))


class TrendingApp(App):
    """Mentions to their number by topic to the list of each minute."""

    def on_init(self) -> None:
        topic, trending = self.create_pe(Topic), self.create_pe(Trending)
        topic.set_window(hopping(300, every=60))
        trending.set_window(tumbling(60))
        topic.mentions = self.create_stream("counts", trending, key=lambda _: "all", time="at")
        trending.trends = self.create_output_stream("trends", types=Trend)
        self.create_input_stream(
            "mentions", topic, key="topic", types=Mention, time="at", lateness=LATENESS
        )


app = TrendingApp("trending")
