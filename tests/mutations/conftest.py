"""Judges that all tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from court import Court


@pytest.fixture(scope="session")
def court() -> Iterator[Court]:
    court = Court()
    yield court
    court.close()
