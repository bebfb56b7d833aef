"""The faults that are put back into a copy of the package are changes of the package as it is."""

from __future__ import annotations

import ast

import pytest
from mutants import MUTANTS, Mutant, changed


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_that_is_put_back_changes_one_place_of_the_package(mutant: Mutant) -> None:
    ast.parse(changed(mutant))
