"""The table of paths, and its description."""

from __future__ import annotations

import json

import pytest

from s4node.http.messages import Answer
from s4node.http.openapi import description
from s4node.http.routes import ROUTES, found
from s4node.net.ingress.peer_rights import PRODUCE, READ


@pytest.mark.parametrize(
    ("method", "path", "name", "parameters"),
    [
        ("GET", "/", "page", {}),
        ("GET", "/status", "status", {}),
        ("GET", "/page.js", "page", {"file": "page.js"}),
        ("POST", "/streams/clicks", "send", {"stream": "clicks"}),
        ("GET", "/streams/a%2Fb", "read", {"stream": "a/b"}),
        ("GET", "/state/app/Pe", "keys", {"app": "app", "pe": "Pe"}),
        ("GET", "/state/app/Pe/%5B1,2%5D", "key", {"app": "app", "pe": "Pe", "key": "[1,2]"}),
        (
            "GET",
            "/state/app/Pe/%FF",
            "key",
            {"app": "app", "pe": "Pe", "key": "\ufffd"},
        ),
    ],
)
def test_a_path_leads_to_its_route(
    method: str, path: str, name: str, parameters: dict[str, str]
) -> None:
    route = found(method, path)
    assert not isinstance(route, Answer)
    assert (route[0].name, route[1]) == (name, parameters)


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/streams/", 404, None),
        ("GET", "/streams/a/b", 404, None),
        ("GET", "//", 404, None),
        ("GET", "http://elsewhere/status", 404, None),
        ("DELETE", "/streams/clicks", 405, "GET, POST"),
        ("OPTIONS", "/streams/clicks", 405, "GET, POST"),
        ("POST", "/status", 405, "GET"),
    ],
)
def test_a_path_or_method_that_there_is_not_is_refused(
    method: str, path: str, status: int, allowed: str | None
) -> None:
    answer = found(method, path)
    assert isinstance(answer, Answer)
    assert answer.status == status
    assert dict(answer.headers).get("Allow") == allowed
    assert not any(name.startswith("Access-Control") for name, _ in answer.headers)


def test_state_and_events_need_a_role_and_only_probes_and_the_page_need_none() -> None:
    rights = {(route.method, route.path): route.right for route in ROUTES}
    assert {path for (_, path), right in rights.items() if not right} == {
        "/livez", "/readyz", "/openapi.json", "/", "/{file}",
    }  # fmt: skip
    for (method, path), right in rights.items():
        if path.startswith(("/state", "/streams")):
            assert right == (PRODUCE if method == "POST" else READ)


def test_the_description_has_all_paths_with_their_parameters() -> None:
    text = json.loads(json.dumps(description()))
    assert text["openapi"].startswith("3.1")
    operations = {
        (method.upper(), path): one
        for path, methods in text["paths"].items()
        for method, one in methods.items()
    }
    assert operations.keys() == {(route.method, route.path) for route in ROUTES}
    ids = [one["operationId"] for one in operations.values()]
    assert len(set(ids)) == len(ids)
    for (_, path), one in operations.items():
        named = {each["name"] for each in one["parameters"] if each["in"] == "path"}
        assert named == {part[1:-1] for part in path.split("/") if part.startswith("{")}
        assert {"403", "421"} <= one["responses"].keys()
