"""The faults that are put back into a copy of the package are changes of the package as it is."""

from __future__ import annotations

import ast
import re

import pytest
from mutants import MUTANTS, ROOT, Mutant, changed


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_that_is_put_back_changes_one_place_of_the_package(mutant: Mutant) -> None:
    ast.parse(changed(mutant))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_that_is_put_back_names_what_there_is(mutant: Mutant) -> None:
    """Else any seed would find it, by an AttributeError."""
    package = "".join(path.read_text() for path in (ROOT / "s4node").rglob("*.py"))
    names = set(re.findall(r"\w+", mutant.new)) - set(re.findall(r"\w+", mutant.old))
    assert {name for name in names if not re.search(rf"\b{name}\b", package)} == set()
