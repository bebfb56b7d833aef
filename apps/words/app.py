"""Word count: lines come in, are split in words, and each word has a PE that counts it.

A line is an event with the attribute "line", as the line adapter makes them. The total of each word
that has changed goes to the output stream "totals" every second.
"""

from __future__ import annotations

from s4node import App, Event, GenericEvent, ProcessingElement, Stream

REPORT_SECONDS = 1


class Word(Event):
    word: str


class Total(Event):
    word: str
    count: int


class Split(ProcessingElement):
    words: Stream

    def on_event(self, event: GenericEvent) -> None:
        for word in event.line.lower().split():
            self.words.put(Word(word))


class Count(ProcessingElement):
    totals: Stream
    count: int = 0
    told: int = 0

    def on_event(self, event: Word) -> None:
        self.count += 1

    def on_time(self) -> None:
        if self.count > self.told:
            self.told = self.count
            self.totals.put(Total(str(self.key), self.count))


class Words(App):
    def on_init(self) -> None:
        split, count = self.create_pe(Split), self.create_pe(Count)
        split.set_singleton()
        count.set_timer_interval(REPORT_SECONDS)
        split.words = self.create_stream("words", count, key="word")
        count.totals = self.create_output_stream("totals", types=Total)
        self.create_input_stream("lines", split)
