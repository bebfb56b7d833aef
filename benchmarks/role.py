"""The process of a role: ``python -m benchmarks.role keyed_count.node``."""

from __future__ import annotations

import importlib
import sys

from benchmarks.runner import listen
from s4node.process import log_setup

if __name__ == "__main__":
    log_setup.configure("warning", "auto")
    module, _, function = sys.argv[1].partition(".")
    getattr(importlib.import_module(f"benchmarks.{module}"), function)(listen())
