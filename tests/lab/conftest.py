"""What the tests of the lab share."""

from collections.abc import Iterator

import pytest

from lab.runs.commands import TEAMS, Server


@pytest.fixture(scope="session")
def teams() -> Iterator[Server]:
    """A server for runs of one or two processes: torch is imported once for all of them."""
    server = Server(modules=TEAMS)
    yield server
    server.process.communicate(timeout=30)
