"""The questions for a task's state, and why they have no answer. Pure."""

from __future__ import annotations

KEY = "state.key"
"""For a key: ``name`` of a PE or store, and ``key``, a text or JSON."""

PAGE = "state.page"
"""For rows of a ``task``: ``name``, the row ``after`` which to begin, and how many at ``most``."""

NO_STATE = "no state"
"""The app saves none."""
NOT_HERE = "not here"
"""Another container has the task, or none."""
BUSY = "busy"
NO_KEY = "no key"
NO_TABLE = "no table"
"""The errors; only the last one is followed by more."""
MOST_ROWS = 1000
