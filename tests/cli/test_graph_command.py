"""``s4 graph``, as a real process; what it draws is tested in ``cli/render/test_drawings.py``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from cli_apps import COUNTER
from harness import run_s4

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


async def test_graph_draws_an_app_without_running_it(tmp_path: Path) -> None:
    (tmp_path / "counter.py").write_text(COUNTER)

    flowchart = await run_s4("graph", "counter.py", cwd=tmp_path)
    described = await run_s4("graph", "counter.py", "--json", cwd=tmp_path)

    assert 's0 -->|"Click by user"| p0' in flowchart.stdout
    assert json.loads(described.stdout)["streams"][0]["targets"] == ["Count"]


async def test_graph_draws_an_adapter_that_has_no_output_stream_s_name_yet(tmp_path: Path) -> None:
    drawn = await run_s4("graph", "apps.lines.adapter", cwd=tmp_path)

    assert '(["s4.adapter.output.stream"])' in drawn.stdout
    assert '|"GenericEvent by name"|' in drawn.stdout


async def test_graph_of_an_app_that_cannot_run_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from s4node import App\napp = App('broken')\napp.create_input_stream('in')\n"
    )

    refused = await run_s4("graph", "broken.py", cwd=tmp_path)

    assert refused.returncode == 2
    assert "stream 'in' leads to no PE" in refused.stderr
