"""docs/pes.md names only methods that exist."""

from __future__ import annotations

import re

from harness import ROOT

from s4node import AdapterApp, App, ProcessingElement


def test_every_method_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(?:\w+\.)?((?:create|set)_\w+|start_soon|remove)\b", PAGE))

    assert named >= {"create_pe", "create_stream", "set_trigger", "set_pe_cache", "start_soon"}
    owners = (App, AdapterApp, ProcessingElement)
    known = {name for owner in owners for name in dir(owner)} | {"set_parallelism"}
    assert named - known == set()


# -- set-up ---------------------------------------------------------------------------------------


PAGE = (ROOT / "docs" / "pes.md").read_text()
