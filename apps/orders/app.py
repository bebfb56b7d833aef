"""Sums the orders of each user by minute, from a topic of Kafka to another one: docs/kafka.md."""

from s4node import Aggregates, App, Event, OutputStream, Sum, tumbling


class Order(Event):
    user: str
    at: float
    amount: int = 0


class Total(Event):
    user: str
    at: float
    amount: int


class PerMinute(Aggregates, of=Order):
    totals: OutputStream
    amount = Sum("amount")

    def on_window(self) -> None:
        self.totals.put(Total(self.key, self.window.start, self.amount))


class Orders(App):
    def on_init(self) -> None:
        pe = self.create_pe(PerMinute)
        pe.set_window(tumbling(60))
        pe.totals = self.create_output_stream("totals", key="user", system="kafka")
        self.create_input_stream("orders", pe, key="user", system="kafka", time="at", lateness=5)


app = Orders("orders")
