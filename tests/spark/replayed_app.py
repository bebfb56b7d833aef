"""An app whose state depends on the order of each key's events: for tests of histories."""

from __future__ import annotations

from s4node import (
    App,
    Collector,
    Coordinator,
    Envelope,
    Event,
    OutputStream,
    ProcessingElement,
    Stream,
    TaskApp,
    TaskContext,
)


class Payment(Event):
    account: str
    shop: int
    cents: int


class Large(Event):
    account: str
    cents: int


class Account(ProcessingElement):
    """Remembers what came in which order, and passes on every third payment and all large ones."""

    payments: Stream
    larges: Stream
    count: int = 0
    digest: int = 0
    last: list[int] = []  # noqa: RUF012 - a copy for each key

    def on_event(self, payment: Payment) -> None:
        self.count += 1
        self.digest = (self.digest * 31 + payment.cents) % 1_000_003
        self.last = [*self.last[-4:], payment.cents]
        if payment.cents % 50 == 0:
            self.larges.put(Large(payment.account, payment.cents))
        if payment.cents == 13:
            self.remove()

    def on_trigger(self, payment: Payment) -> None:
        self.payments.put(payment)


class Shop(ProcessingElement):
    total: int = 0
    seen: int = 0

    def on_event(self, payment: Payment) -> None:
        self.seen += 1
        self.total += payment.cents


class Both(ProcessingElement):
    """Gets two streams of an account: what came in, and what its account has made of that."""

    payments: int = 0
    larges: int = 0

    def on_event_payment(self, _: Payment) -> None:
        self.payments += 1

    async def on_event_large(self, large: Large) -> None:
        self.larges += large.cents


class Replayed(App):
    def on_init(self) -> None:
        shop, both = self.create_pe(Shop), self.create_pe(Both)
        account = self.create_pe(Account)
        account.set_trigger(Payment, events=3)
        account.payments = self.create_stream(
            "thirds", shop, key=lambda payment: (payment.account[:1], payment.shop), types=Payment
        )
        account.larges = self.create_stream("larges", both, key="account", types=Large)
        self.create_input_stream("payments", account, both, key="account", types=Payment)


class Sums(Event):
    account: str
    cents: list[int]
    shop: int | None = None


class Told(ProcessingElement):
    """Puts what it has seen so far on an output stream."""

    sums: OutputStream
    cents: list[int] = []  # noqa: RUF012 - a copy for each key

    def on_event(self, payment: Payment) -> None:
        self.cents = [*self.cents, payment.cents]
        shop = payment.shop or None
        self.sums.put(Sums(payment.account, self.cents, shop))  # type: ignore[arg-type]


class Telling(App):
    def on_init(self) -> None:
        told = self.create_pe(Told)
        told.sums = self.create_output_stream("sums", types=Sums)
        self.create_input_stream("payments", told, key="account", types=Payment)


class Tally:
    """A task that keeps what each account has paid in each shop."""

    def init(self, _: object, context: TaskContext) -> None:
        self.tallies = context.store("tallies")

    def process(self, envelope: Envelope, _: Collector, __: Coordinator) -> None:
        payment = envelope.message
        key = payment.account, payment.shop
        self.tallies.put(key, [*(self.tallies.get(key) or []), payment.cents])


class Tallies(TaskApp):
    def __init__(self) -> None:
        super().__init__("Tallies", Tally, inputs=["log.payments"])

    def on_init(self) -> None:
        self.create_store("tallies", key=tuple, value=list[int])


class Shared(App):
    """Has parts that a history does not fit."""

    def on_init(self) -> None:
        self.table: dict[str, int] = {}
        self.create_input_stream("payments", self.create_pe(Counting), key="account")


class Counting(ProcessingElement):
    def on_event(self, payment: Payment) -> None:
        self.app.last = payment.cents  # type: ignore[attr-defined]
        self.app.table[payment.account] = payment.cents  # type: ignore[attr-defined]


class Cycle(App):
    def on_init(self) -> None:
        pe = self.create_pe(Again)
        self.create_input_stream("payments", pe, key="account")
        pe.stream = self.create_stream("again", pe, key="account")
        every = self.create_pe(Shop, name="every")
        every.set_singleton()
        self.create_input_stream("others", every)


class Again(ProcessingElement):
    stream: Stream

    def on_event(self, payment: Payment) -> None:
        if payment.cents:
            self.stream.put(payment)
