"""The feed: completions and updates from an offset on, live, over a participant and tables in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from ledger_api.server import feed_tail
from ledger_api.server.authorisation import Caller, may_see, may_see_parties
from ledger_api.server.feed import Feed, FeedRefused
from ledger_api.server.feed_lines import Line, Wanted
from ledger_api.server.query_string import QueryString
from replica.link.change_signal import ChangeSignal
from replica.link.interface import Standing
from replica.notary.codes import Code
from replica.notary.errors import BadRequest, StoreUnavailable
from replica.notary.rules import Conflict, Usage
from replica.store.interface import NOTARISED, Completion
from replica.store.memory import MemoryDatabase, MemoryReader
from tests.simulation.virtual import run_virtually
from tests.virtual_time import on_virtual_time

ALL = Wanted(caller=Caller())
UPDATES = Wanted(updates=True, caller=Caller())


def completion(number: int, user: str = "u", party: str = "A", outcome: str = NOTARISED) -> Completion:
    detail = msgspec.msgpack.encode((Conflict(b"s" * 36, b"h" * 32, Usage.INPUT),)) if outcome != NOTARISED else b""
    notarised = 10 + number if outcome == NOTARISED else None
    tx_id = number.to_bytes(32, "big")
    return Completion(
        10 + number, tx_id, user, f"c{number}", (party, "Z"), "s", tx_id, tx_id, outcome, notarised, number, detail
    )


class Core:
    """What a front end knows of its core, to be set at will."""

    def __init__(self, count: int = 0) -> None:
        self.standing_changes = ChangeSignal()
        self.database = MemoryDatabase()
        self.standing = Standing(True, 1, 0.2)
        self.reads = 0
        self.add(*[completion(n) for n in range(1, count + 1)])
        loop = asyncio.get_running_loop()
        reader = MemoryReader(lambda: self.database, self._note, 7)
        self.feed = Feed(self, reader, 10.0, loop.time, unix_s=loop.time)  # type: ignore[arg-type]

    async def _note(self) -> None:
        self.reads += 1
        await asyncio.sleep(0.001)

    def add(self, *completions: Completion) -> None:
        """Publish and announce."""
        rows = self.database.completions
        for one in completions:
            rows.append((len(rows) + 1, one))
        self.tell(ledger_end=len(rows))

    def tell(self, **changes: Any) -> None:
        self.standing = msgspec.structs.replace(self.standing, **changes)
        self.standing_changes.notify()


class Reader:
    """A follower, which keeps what it got."""

    def __init__(self, feed: Feed, after: int = 0, wanted: Wanted = ALL) -> None:
        self.lines: list[Line] = []
        self.ended: FeedRefused | None = None
        self._task = asyncio.create_task(self._run(feed.follow(wanted, after)))

    async def _run(self, lines: AsyncIterator[list[Line]]) -> None:
        try:
            async for batch in lines:
                self.lines += batch
        except FeedRefused as refused:
            self.ended = refused

    def offsets(self, kind: str = "completion") -> list[int]:
        return [line.offset for line in self.lines if line.kind == kind]

    async def stop(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


@on_virtual_time
async def test_a_reader_gets_all_behind_his_offset_then_what_comes() -> None:
    """Goal: catch up, then live, no gap, no duplicate. Method: start in the middle, publish more while it waits."""
    core = Core(20)
    reader = Reader(core.feed, after=5)
    await asyncio.sleep(1)
    assert reader.offsets() == list(range(6, 21))
    core.add(completion(21), completion(22))
    await asyncio.sleep(1)
    assert reader.offsets() == list(range(6, 23))
    await reader.stop()


@on_virtual_time
async def test_nothing_is_shown_before_the_core_says_that_it_is_published() -> None:
    """Goal: only what is committed. Method: rows in the tables that the core has not announced."""
    core = Core(3)
    core.database.completions.append((4, completion(4)))
    reader = Reader(core.feed)
    await asyncio.sleep(5)
    assert reader.offsets() == [1, 2, 3]
    await reader.stop()


@on_virtual_time
async def test_silence_costs_nothing_and_ends_in_a_checkpoint() -> None:
    """Goal: an idle stream moves its reader on for free. Method: rows that do not match, then time."""
    core = Core(0)
    reader = Reader(core.feed, wanted=Wanted(user_id="other", caller=Caller()))
    core.add(completion(1), completion(2))
    await asyncio.sleep(5)
    reads = core.reads
    await asyncio.sleep(26)
    assert [(line.offset, line.kind) for line in reader.lines] == [(2, "checkpoint")] * 3
    assert core.reads == reads
    await reader.stop()


@on_virtual_time
async def test_readers_of_the_newest_share_what_was_read_once() -> None:
    """Goal: many streams are one question. Method: 50 live readers, then a publication."""
    core = Core(20)
    readers = [Reader(core.feed, after=20) for _ in range(50)]
    await asyncio.sleep(1)
    core.reads = 0
    core.add(completion(21))
    await asyncio.sleep(1)
    assert core.reads == 1
    assert all(reader.offsets() == [21] for reader in readers)
    assert len({id(reader.lines[-1]) for reader in readers}) == 1
    for reader in readers:
        await reader.stop()


@on_virtual_time
async def test_what_is_kept_is_bounded_and_a_late_reader_does_not_push_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: memory is bounded by rows and by bytes. Method: small bounds, a live reader, one from the beginning."""
    monkeypatch.setattr(feed_tail, "TAIL_ROWS", 10)
    core = Core(40)
    live = Reader(core.feed, after=36)
    await asyncio.sleep(1)
    late = Reader(core.feed, after=0)
    await asyncio.sleep(1)
    core.add(*[completion(n) for n in range(41, 60)])
    await asyncio.sleep(1)
    assert live.offsets() == list(range(37, 60))
    assert late.offsets() == list(range(1, 60))
    assert len(core.feed.tail.entries) <= 10
    assert core.feed.tail.entries[-1].offset == 59
    await live.stop()
    await late.stop()


@pytest.mark.parametrize(
    "change", [{"active": False}, {"epoch": 2}], ids=["the replica is passive", "it was activated again"]
)
@on_virtual_time
async def test_a_change_of_role_ends_the_streams(change: dict[str, Any]) -> None:
    """Goal: a deposed replica does not go on as if it were live. Method: change the core's report under a reader."""
    core = Core(3)
    reader = Reader(core.feed)
    await asyncio.sleep(1)
    core.tell(**change)
    await asyncio.sleep(0.01)
    assert reader.ended is not None
    assert reader.ended.code is Code.NOT_ACTIVE


@on_virtual_time
async def test_a_stream_ends_when_its_token_does() -> None:
    """Goal: rights that are gone give nothing more. Method: a token of 25 s on an idle stream; a late completion."""
    core = Core(3)
    expires_at_s = asyncio.get_running_loop().time() + 25
    reader = Reader(core.feed, wanted=Wanted(caller=Caller(expires_at_s=expires_at_s)))
    lasting = Reader(core.feed, wanted=Wanted(caller=Caller(expires_at_s=expires_at_s + 5)))
    await asyncio.sleep(24.9)
    assert reader.ended is None
    await asyncio.sleep(0.2)
    core.add(completion(4))
    await asyncio.sleep(0.1)
    assert reader.ended is not None
    assert (reader.ended.code, reader.offsets()) == (Code.TOKEN_INVALID, [1, 2, 3])
    assert lasting.offsets() == [1, 2, 3, 4]
    await lasting.stop()


@on_virtual_time
async def test_a_new_epoch_reads_again() -> None:
    """Goal: what is kept is of one epoch. Method: other tables (and the reader's reset) behind the next epoch."""
    core = Core(3)
    assert (await core.feed.page(ALL, 0, 10, 100)).next_after == 3
    core.database = MemoryDatabase()
    core.add(*[completion(n, party="B") for n in range(1, 4)])
    core.tell(epoch=2)
    page = await core.feed.page(ALL, 0, 10, 100)
    assert [json.loads(line.json)["act_as"][0] for line in page.lines] == ["B"] * 3


def test_a_stream_outlives_a_change_of_holder_where_all_serve() -> None:
    """Goal: who leads is nothing to a reader while its replica serves. Method: the epoch rises, and the database is
    another server that lacks the newest rows; they are published again, and more. Where one serves, the stream ends."""

    async def scenario(all_serve: bool) -> Reader:
        core = Core(5)
        core.tell(all_serve=all_serve)
        reader = Reader(core.feed)
        await asyncio.sleep(1)
        former, core.database = core.database, MemoryDatabase()
        core.database.completions = former.completions[:3]
        core.tell(ledger_end=3)
        await asyncio.sleep(25)
        core.tell(epoch=2)
        core.add(completion(4), completion(5), completion(6))
        await asyncio.sleep(1)
        await reader.stop()
        return reader

    reader = run_virtually(scenario(True))
    assert reader.ended is None
    assert reader.offsets() == [1, 2, 3, 4, 5, 6]
    assert reader.offsets("checkpoint") == [5, 5]
    alone = run_virtually(scenario(False))
    assert (alone.ended and alone.ended.code, alone.offsets()) == (Code.OFFSET_AFTER_END, [1, 2, 3, 4, 5])


def test_a_stream_where_all_serve_ends_with_its_replica_and_at_what_is_pruned() -> None:
    """Goal: it waits only for what will come. Method: the replica stops serving; completions ahead are pruned."""

    async def scenario(**changes: Any) -> Code | None:
        core = Core(5)
        core.tell(all_serve=True)
        reader = Reader(core.feed)
        await asyncio.sleep(1)
        core.tell(epoch=2, **changes)
        await asyncio.sleep(1)
        await reader.stop()
        return reader.ended and reader.ended.code

    assert run_virtually(scenario(active=False)) is Code.NOT_ACTIVE
    assert run_virtually(scenario(pruned_to=6)) is Code.OFFSET_PRUNED
    assert run_virtually(scenario()) is None


@on_virtual_time
async def test_offsets_out_of_range_are_refused_with_the_bounds() -> None:
    """Goal: pruned and future offsets have answers of their own. Method: ask for both, compare the bounds."""
    core = Core(20)
    core.tell(pruned_to=5)
    core.database.pruned_to = 5
    for after, code in ((4, Code.OFFSET_PRUNED), (21, Code.OFFSET_AFTER_END)):
        with pytest.raises(FeedRefused) as caught:
            await core.feed.page(ALL, after, 10, 100)
        assert caught.value.code is code
        assert (caught.value.standing.pruned_to, caught.value.standing.ledger_end) == (5, 20)
    assert [line.offset for line in (await core.feed.page(ALL, 5, 100, 100)).lines] == list(range(6, 21))


@on_virtual_time
async def test_a_database_without_the_rows_is_not_taken_for_an_empty_one() -> None:
    """Goal: a gap is an error, never skipped. Method: the core announces more than the tables have; a hole in them."""
    core = Core(5)
    core.tell(ledger_end=8)
    reader = Reader(core.feed, after=5)
    await asyncio.sleep(1)
    assert reader.ended is not None
    assert reader.ended.code is Code.FEED_UNAVAILABLE
    del core.database.completions[2]
    with pytest.raises(FeedRefused) as caught:
        await core.feed.page(ALL, 0, 10, 100)
    assert isinstance(caught.value.__cause__, StoreUnavailable)


@on_virtual_time
async def test_filters_and_rights_are_joined() -> None:
    """Goal: a reader sees what it asked for and may see. Method: every pair of filter and caller over mixed rows."""

    async def offsets(core: Core, wanted: Wanted) -> list[int]:
        return [line.offset for line in (await core.feed.page(wanted, 0, 100, 100)).lines]

    core = Core()
    core.add(completion(1, "u", "A"), completion(2, "v", "A"), completion(3, "v", "B"), completion(4, "u", "B"))
    parties = frozenset({"A", "C"})
    assert await offsets(core, Wanted(user_id="v", caller=Caller())) == [2, 3]
    assert await offsets(core, Wanted(parties=parties, caller=Caller())) == [1, 2]
    assert await offsets(core, Wanted(parties=parties, user_id="v", caller=Caller())) == [2]
    assert await offsets(core, Wanted(caller=Caller("u", frozenset({"B"})))) == [4]
    assert await offsets(core, Wanted(user_id="v", caller=Caller("u"))) == []
    assert await offsets(core, Wanted(updates=True, caller=Caller("u", parties))) == [1, 2]


@on_virtual_time
async def test_a_reader_is_told_of_no_party_that_he_may_not_read() -> None:
    """Goal: who else acted is their business, as in Canton. Method: completions, conflicts and updates of A and Z, read
    with rights for A, for both, for all; in pages and in a stream; twice, as lines are kept."""

    async def parties(core: Core, wanted: Wanted) -> list[list[str]]:
        return [json.loads(line.json)["act_as"] for line in (await core.feed.page(wanted, 0, 100, 100)).lines]

    core = Core()
    core.add(completion(1), completion(2, outcome="STATE_CONFLICT"), completion(3))
    rights = {frozenset("AB"): ["A"], frozenset("ZA"): ["A", "Z"], None: ["A", "Z"], frozenset("Z"): ["Z"]}
    for read_as, shown in [*rights.items()] * 2:
        caller = Caller("u", read_as)
        assert await parties(core, Wanted(caller=caller)) == [shown] * 3
        assert await parties(core, Wanted(updates=True, caller=caller)) == [shown] * 2
        reader = Reader(core.feed, wanted=Wanted(caller=caller))
        await asyncio.sleep(1)
        assert [json.loads(line.json)["act_as"] for line in reader.lines] == [shown] * 3
        assert len(json.loads(reader.lines[1].json)["conflicts"]) == 1
        await reader.stop()
    some, everybody = Wanted(caller=Caller("u", frozenset("A"))), Wanted(caller=Caller("u"))
    part, whole = [(await core.feed.page(wanted, 1, 1, 9)).lines[0].json for wanted in (some, everybody)]
    assert json.loads(part) == json.loads(whole) | {"act_as": ["A"]}
    asked = Wanted(caller=Caller("u", frozenset("A")), parties=frozenset("Z"))
    assert await parties(core, asked) == []  # or who asks for Z would learn where it acted


@on_virtual_time
async def test_an_update_is_the_first_notarisation_only() -> None:
    """Goal: each transaction once. Method: a refusal, a success, and the same transaction for another command."""
    core = Core()
    again = msgspec.structs.replace(completion(3), notarised_offset=12, tx_id=completion(2).tx_id)
    core.add(completion(1, outcome="STATE_CONFLICT"), completion(2), again)
    page = await core.feed.page(UPDATES, 0, 100, 100)
    assert [json.loads(line.json) for line in page.lines] == [
        {
            "kind": "update",
            "offset": 2,
            "tx_id": (2).to_bytes(32, "big").hex(),
            "content_digest": (2).to_bytes(32, "big").hex(),
            "act_as": ["A", "Z"],
            "log_offset": 12,
            "recorded_at": "1970-01-01T00:00:00.000002Z",
        }
    ]
    assert page.next_after == 3
    refusal = json.loads((await core.feed.page(ALL, 0, 1, 100)).lines[0].json)
    assert refusal["conflicts"] == [
        {"state": (b"s" * 32).hex() + ":1936946035", "consumed_by_hash": (b"h" * 32).hex(), "usage": "input"}
    ]


@on_virtual_time
async def test_a_page_is_bounded_by_lines_and_by_what_it_looks_through() -> None:
    """Goal: a page that finds nothing ends as well. Method: a filter that nothing matches; a limit inside a batch."""
    core = Core(60)
    nothing = await core.feed.page(Wanted(user_id="x", caller=Caller()), 0, 10, 30)
    assert (nothing.lines, nothing.next_after) == ([], 30)
    some = await core.feed.page(ALL, 3, 5, 30)
    assert ([line.offset for line in some.lines], some.next_after) == ([4, 5, 6, 7, 8], 8)
    end = await core.feed.page(ALL, 60, 5, 30)
    assert (end.lines, end.next_after) == ([], 60)


@on_virtual_time
async def test_a_closed_feed_ends_its_streams() -> None:
    """Goal: a front end that stops keeps nobody. Method: close under a reader that waits."""
    core = Core(2)
    reader = Reader(core.feed)
    await asyncio.sleep(1)
    await core.feed.close()
    await asyncio.sleep(0.01)
    assert reader.ended is not None
    assert reader.offsets() == [1, 2]


def test_who_may_see_what() -> None:
    """Goal: the one rule of entitlement. Method: its table."""
    assert may_see(Caller(), "u", ("A",))
    assert may_see(Caller("u", frozenset("AB")), "u", ("B", "C"))
    assert not may_see(Caller("u", frozenset("AB")), "v", ("A",))
    assert not may_see(Caller("u", frozenset()), "u", ("A",))
    assert may_see_parties(Caller("u", frozenset("A")), ("A",))
    assert not may_see_parties(Caller("u", frozenset("A")), ("B",))


@pytest.mark.parametrize(
    "text",
    ["after=-1", "after=", "after=1&after=2", "after=1e3", "after=9223372036854775808", "aftr=1", "a", "x&y=1&" * 40],
)
def test_a_query_that_cannot_be_meant_is_refused(text: str) -> None:
    """Goal: a misspelt filter is never ignored. Method: queries with one mistake each."""
    with pytest.raises(BadRequest) as caught:
        QueryString(text, ("after", "party", "x", "y")).number("after", 0)
    assert caught.value.code is Code.QUERY_INVALID


def test_a_query_is_read() -> None:
    """Goal: names come through as they are. Method: percent-encoded parties, defaults, both flags."""
    query = QueryString(
        "party=O%3DBank+A%2CC%3DGB&party=B&after=007&follow=true", ("party", "after", "follow", "limit")
    )
    assert query.texts("party") == ["O=Bank A,C=GB", "B"]
    assert (query.number("after", 1), query.number("limit", 9), query.flag("follow")) == (7, 9, True)
    assert not QueryString("", ()).flag("follow")
