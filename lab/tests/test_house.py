"""A skipped test is a failure in CI, unless its reason is on a list."""

from types import SimpleNamespace

import conftest


def test_a_skip_is_accepted_only_with_a_reason_on_the_list():
    def skipped(reason: str) -> SimpleNamespace:
        return SimpleNamespace(nodeid="tests/a.py::b", longrepr=("a.py", 1, f"Skipped: {reason}"))

    assert conftest.unexpected_skips([skipped("nothing can be mounted here: no root")]) == []
    assert conftest.unexpected_skips([skipped("could not import 'ray'")]) == [
        "tests/a.py::b: could not import 'ray'"
    ]
