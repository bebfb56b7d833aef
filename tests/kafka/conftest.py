"""The broker that the tests of this folder share; each has topics of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kafka_broker import Broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    from kafka_broker import running_broker  # which needs the extra kafka

    with running_broker(tmp_path_factory.mktemp("kafka")) as found:
        yield found
