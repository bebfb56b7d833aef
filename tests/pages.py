"""Pages of docs: what they say that commands print."""

from __future__ import annotations

import re


def matches(told: list[str], printed: list[str]) -> bool:
    """A command has printed what was told, where three dots are any text."""
    patterns = [re.escape(line).replace(r"\.\.\.", ".+") for line in told]
    return len(printed) == len(told) and all(map(re.fullmatch, patterns, printed))
