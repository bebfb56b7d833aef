"""The table of paths: what is asked where, and who may. Pure.

Rules
- A part of a path in braces takes any text without a slash.
- A route without a ``right`` is for everybody. ``KNOWN`` needs any role in the cluster, others a
  role that may do this on the wire, too (:mod:`s4node.net.ingress.peer_rights`).
"""

from __future__ import annotations

from dataclasses import dataclass

from s4node.http.messages import Answer, segments_of
from s4node.net.ingress.peer_rights import PRODUCE, READ

KNOWN = "ask about the cluster"


@dataclass(frozen=True)
class Route:
    """How a request is answered: by the function of this ``name``."""

    method: str
    path: str
    name: str
    right: str
    about: str


ROUTES = (
    Route("GET", "/livez", "live", "", "whether the process lives"),
    Route("GET", "/readyz", "ready", "", "whether it is ready, else what it lacks"),
    Route("GET", "/metrics", "metrics", KNOWN, "its counts, as Prometheus reads them"),
    Route("GET", "/status", "status", KNOWN, "the cluster, as s4 status --json prints it"),
    Route("GET", "/why", "why", KNOWN, "what holds apps up, as s4 why --json prints it"),
    Route("POST", "/streams/{stream}", "send", PRODUCE, "send events to a stream"),
    Route("GET", "/streams/{stream}", "read", READ, "the events of a stream from now on"),
    Route("GET", "/state/{app}/{pe}/{key}", "key", READ, "the state of a key, as of a commit"),
    Route("GET", "/state/{app}/{pe}", "keys", READ, "the keys of a PE or store, page by page"),
    Route("GET", "/openapi.json", "description", "", "this description of all paths"),
    Route("GET", "/", "page", "", "a page that shows the cluster"),
    Route("GET", "/{file}", "page", "", "a file of the page"),
)


def found(method: str, path: str) -> tuple[Route, dict[str, str]] | Answer:
    """The route of a request, with the parameters in its path, or the answer if there is none."""
    parts = segments_of(path)
    here = [
        (route, parameters)
        for route in ROUTES
        if (parameters := _matched(segments_of(route.path), parts)) is not None
    ]
    if not here:
        return nothing_here()
    for route, parameters in here:
        if route.method == method:
            return route, parameters
    allowed = ", ".join(sorted({route.method for route, _ in here}))
    return Answer(405, f"only {allowed} is answered here\n", headers=(("Allow", allowed),))


def nothing_here() -> Answer:
    paths = ", ".join(dict.fromkeys(route.path for route in ROUTES))
    return Answer(404, f"there is nothing here; see {paths}\n")


def _matched(pattern: list[str], parts: list[str]) -> dict[str, str] | None:
    if len(pattern) != len(parts):
        return None
    parameters = {}
    for name, part in zip(pattern, parts, strict=True):
        if name.startswith("{") and part:
            parameters[name[1:-1]] = part
        elif name != part:
            return None
    return parameters
