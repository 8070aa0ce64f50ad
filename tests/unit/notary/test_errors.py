"""The error catalogue: complete entries, stable names, and the same in the documentation."""

from __future__ import annotations

import pytest

from ha import invariant
from ha.errors import HaError, LeaseUnavailable, LockLost
from replica.active.lease_log import _asked
from replica.notary import errors
from replica.notary.codes import Code, Retry
from replica.notary.errors import BadRequest, InvariantBroken, LogUnavailable, NotaryError
from tests.golden.error_table import LISTS, list_in
from tests.golden.seen import election_errors


def test_the_documentation_has_exactly_the_catalogue() -> None:
    """Goal: the documents are true. Method: compare lists; `python -m tests.golden.error_table` rewrites them."""
    for path, name, make in LISTS:
        assert list_in(path.read_text(), name) == make(), f"{path.name}, {name}"


def test_an_error_of_the_election_says_what_to_do() -> None:
    """Goal: the same for the other family, which has no catalogue. Method: each one's code and remedy."""
    kinds = election_errors()
    assert len({kind.code for kind in kinds}) == len(kinds)
    assert all(kind.code.startswith("HA_") and kind.remedy.endswith(".") for kind in kinds)
    assert all(kind.remedy != HaError.remedy for kind in kinds)


async def test_a_lost_lease_is_one_error_that_names_no_database() -> None:
    """Goal: who has no database is not sent to one. Method: the log does not answer a lease's question."""

    async def away() -> None:
        raise LogUnavailable("no log node answers")

    with pytest.raises(LockLost) as lost:
        await _asked(away())
    assert str(lost.value).count(Code.LOG_UNAVAILABLE.remedy) == 0
    assert not any("database" in kind.remedy for kind in (LockLost, LeaseUnavailable))


@pytest.mark.parametrize("code", Code, ids=lambda code: code.name)
def test_each_code_says_what_it_means_and_what_to_do(code: Code) -> None:
    """Goal: nobody meets a bare name. Method: title, remedy, status and retry of each entry."""
    assert code.name.isupper()
    assert code.title[0].isupper()
    assert not code.title.endswith(".")
    assert code.remedy.rstrip().endswith(".")
    assert "|" not in code.title + code.remedy
    assert code.status == 0 or 400 <= code.status < 600
    if code.status >= 500:
        assert code.retry is Retry.SAME  # nothing is decided: the client must ask again


def test_no_two_codes_are_one() -> None:
    """Goal: an enum with equal values would fold two names into one. Method: count names and members."""
    assert len(Code.__members__) == len(list(Code))


def test_an_error_carries_its_code_and_the_case() -> None:
    """Goal: support can act on one string. Method: default and explicit code."""
    assert str(BadRequest("x is wrong")) == "MALFORMED_REQUEST: x is wrong"
    error = NotaryError("too many", Code.TOO_MANY_STATES)
    assert (error.code, error.detail) == (Code.TOO_MANY_STATES, "too many")


def test_a_bug_is_one_error_that_no_handler_of_others_catches() -> None:
    """Goal: nobody goes on after a bug by accident. Method: the families' bases, and the code that people see."""
    assert errors.InvariantBroken is invariant.InvariantBroken
    assert not issubclass(InvariantBroken, NotaryError | HaError)
    bug = InvariantBroken("offset 7 twice")
    assert (str(bug), bug.detail, Code[bug.code]) == ("INTERNAL: offset 7 twice", "offset 7 twice", Code.INTERNAL)


def test_what_needs_a_person_is_said_in_the_catalogue() -> None:
    """Goal: a supervisor leaves down exactly what starting again cannot mend. Method: the whole list, by name."""
    assert {code.name for code in Code if code.person} == {
        "API_OPEN",
        "CONFIG_INVALID",
        "FORMAT_UNKNOWN",
        "INDEX_DAMAGED_AGAIN",
        "INDEX_MISMATCH",
        "KEY_UNSAFE",
        "LEDGERS_SHARE_DATABASE",
        "LOG_COPY_REFUSED",
        "LOG_MISMATCH",
        "LOG_MISSING",
        "LOG_PAYLOAD_MISSING",
        "LOG_TRUNCATED",
        "LOG_WITHOUT_GENESIS",
        "PIPELINE_MISSING",
        "PLACE_ACCESS_DENIED",
        "PLACE_UNKNOWN",
        "PLACE_UNSAFE",
        "PLAINTEXT_EXPOSED",
        "SALVAGE_DAMAGED",
        "SALVAGE_MISSING",
        "STORE_MISMATCH",
        "TOPIC_UNSAFE",
        "TRUST_UNSAFE",
    }
    assert all(code.retry is Retry.NO for code in Code if code.person)
