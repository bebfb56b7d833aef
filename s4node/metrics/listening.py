"""The metrics of what listens: its peers, and the sinks of its log. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from s4node.metrics.snapshot import Value


def listening(peers: Mapping[str, int], published: Mapping[str, int]) -> dict[str, Value]:
    """The metrics of a listener's counts, and of what the sinks of its log have ``published``."""
    return {
        "connections": peers.get("connections", 0),
        "bad-frames": peers.get("bad frames", 0),
        "connections-refused": peers.get("connections refused", 0),
        "connections-ended": peers.get("connections ended", 0) + peers.get("strangers", 0),
        "limits-reached": peers.get("limits reached", 0),
        "sink-batches": published.get("batches", 0),
        "sink-events": published.get("events", 0),
    }
