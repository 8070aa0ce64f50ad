"""Each test of this folder runs once for each client, which is built before the first of them."""

from __future__ import annotations

import pytest

from tests.clients.programs import BUILD_MAX_S, LANGUAGES, build


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of a language waits for its build."""
    for item in items:
        if "language" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(BUILD_MAX_S + 120))


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    """A client that is built."""
    build(request.param)
    return str(request.param)
