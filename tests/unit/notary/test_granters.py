"""Who granted an epoch: one layout for ever, in which only later formats may have granters of their own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from replica.checker.judge import ReferenceJudge
from replica.notary.errors import FormatUnknown
from replica.notary.granters import Claim, Database, Granter, Pause, Release, database_of, grants_as, opens_nothing
from replica.notary.position import begin
from replica.notary.reading import VoidReason, read_records
from replica.notary.records import BarrierRecord, decode_record, encode_record
from tests.next_version.release import NEXT
from tests.worlds.notary_logs import NO_GRANTERS, LogMaker, activation, made, run_product

UNDECODABLE = VoidReason.UNDECODABLE.value
LATER = [4, "a quorum", 7]


def claimed() -> LogMaker:
    maker = made()
    maker.claim(1, -1)
    return maker


@pytest.mark.parametrize(
    ("granter", "database", "name", "nobodys"),
    [
        (Database("postgres", "71", 2), Database("postgres", "71", 2), "postgres:71:2", False),
        (Pause("postgres", "71", 2, "R1"), Database("postgres", "71", 2), "postgres:71:2", True),
        (Claim(17), None, "lease", False),
        (Release(""), None, "lease", True),
    ],
)
def test_each_granter_says_what_it_is(granter: Granter, database: Database | None, name: str, nobodys: bool) -> None:
    """Goal: a pause names its database, a claim and a release the log. Method: each kind."""
    assert (database_of(granter), grants_as(granter), opens_nothing(granter)) == (database, name, nobodys)


@pytest.mark.parametrize("granter", NO_GRANTERS, ids=str)
def test_what_is_no_granter_is_void(granter: object) -> None:
    """Goal: a barrier of this format has one of four granters. Method: each other thing in its place."""
    maker = claimed()
    offset = maker.barrier_by(granter)
    assert run_product(maker.log).voids == {offset: UNDECODABLE}


@pytest.mark.parametrize("site", [("east", 2), ("", 0)])
def test_a_site_has_its_place(site: tuple[str, int]) -> None:
    """Goal: a release that names sites needs no new layout. Method: a barrier that names one comes into force."""
    barrier = BarrierRecord(2, activation(2), "R2", Claim(1), 2, 3, site)
    maker = claimed()
    maker.raw(encode_record(barrier))
    assert run_product(maker.log).position.barrier == barrier


@pytest.mark.parametrize(
    "changed",
    [{"site": "east"}, {"site": ["east"]}, {"site": ["east", -1]}, {"site": ["a b", 1]}, {"replica": "R\n"}],
    ids=str,
)
def test_no_other_site_or_replica_has(changed: dict[str, Any]) -> None:
    """Goal: names are visible ASCII. Method: what is no name, no site."""
    maker = claimed()
    offset = maker.barrier_by([2, "R1"], **changed)
    assert run_product(maker.log).voids == {offset: UNDECODABLE}


def test_a_barrier_has_one_encoding() -> None:
    """Goal: two readers in two languages take the same bytes. Method: an epoch in eight bytes more than it needs,
    in a barrier of this format and of a later one."""
    maker = claimed()
    value = encode_record(BarrierRecord(7, activation(7), "R7", Claim(1), 2, 3))
    assert value[2] == 7
    maker.barrier_by(LATER, 7, format=NEXT.records, rules=NEXT.rules)
    later = maker.values.pop()
    offsets = [maker.raw(raw[:2] + b"\xcf" + bytes(7) + raw[2:]) for raw in (value, later)]
    assert run_product(maker.log).voids == dict.fromkeys(offsets, UNDECODABLE)


@pytest.mark.parametrize("reads", [lambda log: read_records(begin("topic"), log), lambda log: [*_judged(log)]])
def test_a_later_format_may_have_granters_of_its_own(reads: Any) -> None:
    """Goal: whoever does not know them stops, instead of going on under the barrier before. Method: such a barrier in a
    later format; the same with an epoch that is not higher, which stops nobody."""
    maker = claimed()
    of_next = {"format": NEXT.records, "rules": NEXT.rules}
    maker.barrier_by(LATER, 1, **of_next)
    reads(maker.log)
    maker.barrier_by(LATER, **of_next)
    with pytest.raises(FormatUnknown):
        reads(maker.log)


def test_tools_can_show_a_barrier_of_a_later_format() -> None:
    """Goal: `notary log show` names it. Method: decode it."""
    maker = claimed()
    offset = maker.barrier_by(LATER, format=NEXT.records, rules=NEXT.rules)
    record = decode_record(maker.values[offset], 0)
    assert isinstance(record, BarrierRecord)
    assert (record.epoch, record.record_format) == (9, NEXT.records)
    assert msgspec.structs.asdict(record)["rules_version"] == NEXT.rules


def _judged(log: list[tuple[int, bytes]]) -> Any:
    return ReferenceJudge().judge(log)
