"""An app that answers payments with totals: for tests of the way back to Spark."""

from __future__ import annotations

from s4node import App, Event, OutputStream, ProcessingElement
from tests.spark.replayed_app import Payment


class Total(Event):
    account: str
    number: int
    cents: int


class Account(ProcessingElement):
    totals: OutputStream
    number: int = 0
    cents: int = 0

    def on_event(self, payment: Payment) -> None:
        self.number += 1
        self.cents += payment.cents
        self.totals.put(Total(self.key, self.number, self.cents))  # type: ignore[arg-type]


class Totals(App):
    def on_init(self) -> None:
        account = self.create_pe(Account)
        account.totals = self.create_output_stream("totals", types=Total)
        self.create_input_stream("payments", account, key="account")
