"""The description of all paths for programs that make clients, as OpenAPI has it. Pure."""

from __future__ import annotations

import re
from typing import Any

from s4node.http.messages import EVENTS, JSON, TEXT
from s4node.http.routes import ROUTES, Route
from s4node.version import __version__

_REFUSED = {
    "401": "there is neither a certificate nor a token that counts",
    "403": "the role may not do this, or a page of another origin asks",
    "421": "the node is not known by this name",
}
_AWAY = {"503": "nothing can answer now; try again"}
_SENT = {
    "200": "all events are committed",
    "202": "all events are processed, and lost if their owner dies",
    "400": "the key or the type cannot be used on this stream",
    "404": "there is no such stream",
    "413": "the body is too large",
    "415": "the body is neither JSON nor lines of it",
    "422": "events are refused; or the key has sent other events",
    "429": "nothing was taken; try again",
    "504": "some events may be taken; repeat with the same key",
    **_AWAY,
}
_STATE = {"404": "there is no such app, table or key", "409": "the app saves no state", **_AWAY}
_ANSWERS = {
    "live": {"200": "it lives"},
    "ready": {"200": "it is ready", "503": "it lacks something"},
    "metrics": {"200": "the metrics", **_AWAY},
    "send": _SENT,
    "read": {"200": "the events, as they come", "404": _SENT["404"], **_AWAY},
    "key": {"200": "the state, and the commit that it is of", **_STATE},
    "keys": {"200": "a page of keys", "400": "limit or after is wrong", **_STATE},
}
_KINDS = {"live": TEXT, "ready": TEXT, "metrics": TEXT, "page": "text/html", "read": EVENTS}
_QUERY = {
    "send": {"type": "the type of the events, if the stream takes several"},
    "keys": {"limit": "how many keys, 100 by default", "after": "that of the page before"},
}


def description() -> dict[str, Any]:
    """The description, without a server: paths are those of the node that gives it."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "s4node", "version": __version__},
        "paths": paths,
        "components": {
            "securitySchemes": {
                "certificate": {"type": "mutualTLS"},
                "token": {"type": "http", "scheme": "bearer"},
            }
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    kind = _KINDS.get(route.name, JSON)
    answers = {**_ANSWERS.get(route.name, {"200": route.about, **_AWAY}), **_REFUSED}
    found: dict[str, Any] = {
        "operationId": route.name if route.path != "/" else "index",
        "summary": route.about,
        "parameters": [
            *(_parameter(name, "path") for name in re.findall(r"{(\w+)}", route.path)),
            *(_parameter(*each) for each in _asked(route)),
        ],
        "responses": {
            status: {
                "description": about,
                **({"content": {kind.partition(";")[0]: {}}} if status == "200" else {}),
            }
            for status, about in sorted(answers.items())
        },
        "security": [{"certificate": []}, {"token": []}, {}] if route.right else [{}],
    }
    if route.method == "POST":
        found["parameters"].append(_parameter("Idempotency-Key", "header", "counts events once"))
        one = {"type": "object"}
        many = {"oneOf": [one, {"type": "array", "items": one}]}
        lines = {"type": "string"}
        content = {JSON: {"schema": many}, "application/x-ndjson": {"schema": lines}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _asked(route: Route) -> list[tuple[str, str, str]]:
    return [(name, "query", about) for name, about in _QUERY.get(route.name, {}).items()]


def _parameter(name: str, place: str, about: str = "") -> dict[str, Any]:
    text = {"description": about} if about else {}
    required = {"required": True} if place == "path" else {}
    return {"name": name, "in": place, "schema": {"type": "string"}, **required, **text}
