"""Requests and answers of HTTP as bytes, for one connection. Pure.

Rules
- A head has at most 16 KiB; h11 counts them. A body has at most ``MOST_BODY_BYTES``, and is read
  only for a route that takes one. If a part of a request stays unread, its connection ends.
- No answer is kept by a browser, guessed to be of another type, or given to another origin's page.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

import h11

MOST_HEAD_BYTES = 16 << 10
MOST_BODY_BYTES = 8 << 20
MOST_QUERY = 2000

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
EVENTS = "text/event-stream"

POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

_HEADERS = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", POLICY),
)


@dataclass(frozen=True)
class Request:
    """A request: its ``headers`` by name in small letters, ``parameters`` from its path, and the
    name of its ``caller``, empty where nobody is known."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""
    parameters: Mapping[str, str] = field(default_factory=dict)
    caller: str = ""


@dataclass(frozen=True)
class Answer:
    """An answer: a status of HTTP, and a text, or parts of one that come with time."""

    status: int
    text: str | bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()
    parts: AsyncGenerator[bytes, None] | None = None


class Unreadable(Exception):  # noqa: N818
    """The peer has sent no request, or too much; ``answer`` says so."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.text)
        self.answer = answer


class Conversation:
    """One connection: received bytes become requests, and answers become bytes."""

    def __init__(self) -> None:
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD_BYTES)
        self._is_over = self._is_head = False
        self.is_known = False
        """True once a request was answered."""
        self._body: list[bytes] = []
        self.body_bytes = 0

    def feed(self, data: bytes) -> None:
        """Take bytes of the peer; empty ones are its end."""
        self._h11.receive_data(data)

    @property
    def is_over(self) -> bool:
        """Return True if the peer has ended the connection."""
        return self._is_over

    def head(self) -> Request | None:
        """The next request without its body, once its head has come; raises Unreadable."""
        event = self._next()
        if isinstance(event, h11.Request):
            path, _, query = event.target.decode("ascii", "replace").partition("?")
            self._is_head = event.method == b"HEAD"
            headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
            if not headers.keys() & {"content-length", "transfer-encoding"}:
                self._next()  # its end
            given = dict(parse_qsl(query[:MOST_QUERY], keep_blank_values=True))
            return Request(event.method.decode(), path, given, headers)
        self._is_over = event is not h11.NEED_DATA
        return None

    def continue_(self) -> bytes:
        """The bytes after which a peer sends a body that it holds back; none if it does not."""
        if not self._h11.they_are_waiting_for_100_continue:
            return b""
        return self._h11.send(h11.InformationalResponse(status_code=100, headers=[])) or b""

    def body(self) -> bytes | None:
        """The body of the request, once all of it has come; raises Unreadable."""
        if self._is_read:
            return b""
        while True:
            event = self._next()
            if isinstance(event, h11.Data):
                self._body.append(bytes(event.data))
                self.body_bytes += len(event.data)
                if self.body_bytes > MOST_BODY_BYTES:
                    raise Unreadable(too_large())
            elif isinstance(event, h11.EndOfMessage):
                body, self._body, self.body_bytes = b"".join(self._body), [], 0
                return body
            else:
                self._is_over = event is not h11.NEED_DATA
                return None

    def answer(self, answer: Answer) -> bytes:
        """The bytes of a whole answer, or of its head if it has parts. If some of the request is
        unread, it is the last one of the connection."""
        text = answer.text
        data = text.encode("utf-8", "replace") if isinstance(text, str) else text
        headers = [("Content-Type", answer.content_type), *_HEADERS, *answer.headers]
        if answer.parts is None:
            headers.append(("Content-Length", str(len(data))))
        if not self._is_read:
            headers.append(("Connection", "close"))
        head = self._h11.send(h11.Response(status_code=answer.status, headers=headers)) or b""
        if answer.parts is not None:
            return head
        return head + (b"" if self._is_head else self.part(data)) + self.last_part()

    @property
    def _is_read(self) -> bool:
        return self._h11.their_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)

    def part(self, data: bytes) -> bytes:
        return self._h11.send(h11.Data(data=data)) or b""

    def last_part(self) -> bytes:
        return self._h11.send(h11.EndOfMessage()) or b""

    def next_cycle(self) -> bool:
        """Prepare for the next request; False if the connection ends."""
        if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
            return False
        self._h11.start_next_cycle()
        self.is_known = True
        return True

    def _next(self) -> object:
        try:
            return self._h11.next_event()
        except h11.RemoteProtocolError as error:
            raise Unreadable(Answer(error.error_status_hint, f"{error}\n")) from error


def too_large() -> Answer:
    return Answer(413, f"a body has at most {MOST_BODY_BYTES} bytes; send less at a time\n")


def segments_of(path: str) -> list[str]:
    """The decoded parts of a path between its slashes."""
    return [unquote(part, errors="replace") for part in path.split("/")[1:]]
