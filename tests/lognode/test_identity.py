"""Which log a node has, and which one its clients believe in."""

from __future__ import annotations

import pytest

from replica.log.raft.identity import believed_log, is_other_log


@pytest.mark.parametrize(
    ("own", "named", "other"), [("a", "b", True), ("a", "a", False), ("", "b", False), ("a", "", False)]
)
def test_a_node_without_a_log_is_no_stranger(own: str, named: str, other: bool) -> None:
    assert is_other_log(own, named) is other


@pytest.mark.parametrize(
    ("named", "known", "believed"),
    [
        (["a", "a"], "", "a"),
        (["b", "a", "a"], "", "a"),
        (["a", "", ""], "", "a"),  # just begun: the others have not joined yet
        (["a"], "", None),
        (["b", "a"], "", None),
        (["b", "a", ""], "", None),
        (["b"], "a", "a"),  # one stranger
        (["b", "a"], "a", "a"),
        (["b", "b"], "a", "b"),  # created anew
        ([], "a", "a"),
        ([], "", None),
    ],
)
def test_it_takes_a_majority_to_believe_in_another_log(named: list[str], known: str, believed: str | None) -> None:
    assert believed_log(named, 3, known=known) == believed


def test_one_node_is_a_majority_of_one() -> None:
    assert believed_log(["b"], 1, known="a") == "b"
