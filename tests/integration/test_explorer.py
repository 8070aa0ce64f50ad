"""The ledger explorer in a real browser, over a real HTTP server and a ledger of the test; makes its screenshots."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from nacl.signing import SigningKey
from playwright.async_api import Page, Route, expect

from ledger_api.client import Party
from replica.notary.answers import StateStatus
from replica.notary.canonical import summarise
from replica.notary.codes import Code
from replica.notary.requests import Submission, parse_state_ref
from replica.notary.rules import Conflict, Usage, hash_of_tx_id
from replica.store.interface import NOTARISED, Completion
from tests.browser import browser_page
from tests.golden.make import FOLDER
from tests.tokens import AUDIENCE, Issuer
from tests.worlds.api_world import ACTIVE, BANK, ApiWorld, StubParticipant, notarise
from tests.worlds.beginning import LEDGER

SCREENSHOTS = Path(__file__).parents[2] / "docs" / "screenshots"
RENEWING = bool(os.environ.get("RENEW_SCREENSHOTS"))
SHOWN_MAX_MS = 20_000
NARROW = 380  # a telephone
SHORT = 300  # a picture is as high as its page, and at least this
OTHER = Party("O=Bank B,L=Paris,C=FR", LEDGER, SigningKey(b"bank b's key, only for the tests"))
BEGAN_US = 1_767_323_045_000_000
OTHERS_USER = "settlement" if RENEWING else "<img src=x onerror=document.title='owned'>"


def completed(submission: Submission, party: Party, log_offset: int, conflict: Conflict | None = None) -> Completion:
    """What is published of it."""
    tx_id, digest, _ = summarise(submission.request)
    return Completion(
        log_offset,
        digest,
        "treasury" if party is BANK else OTHERS_USER,
        f"payment-{log_offset}",
        (party.name,),
        f"payment-{log_offset}/1",
        tx_id,
        digest,
        NOTARISED if conflict is None else Code.STATE_CONFLICT.name,
        log_offset if conflict is None else None,
        BEGAN_US + 1_000_000 * log_offset,
        b"" if conflict is None else msgspec.msgpack.encode((conflict,)),
        None,
    )


@dataclass
class Ledger:
    """A ledger: a state, its winner, who came too late, and a party's name."""

    endpoint: str
    state: str
    winner: str
    loser: str
    party: str

    @property
    def url(self) -> str:
        return f"{self.endpoint}/v1/explorer"


@asynccontextmanager
async def served(folder: Path, **settings: object) -> AsyncIterator[Ledger]:
    """One double spend among some thirty transactions of two parties."""
    state = f"{os.urandom(32).hex()}:0"
    first, second = BANK.sign(inputs=[state]), OTHER.sign(inputs=[state])
    winner, loser = (summarise(submission.request)[0] for submission in (first, second))
    conflict = Conflict(parse_state_ref(state), hash_of_tx_id(winner), Usage.INPUT)
    rows = [completed(first, BANK, 1), completed(second, OTHER, 2, conflict)]
    for number in range(3, 33):
        party = (BANK, OTHER)[number % 2]
        rows.append(completed(party.sign(inputs=[f"{os.urandom(32).hex()}:0"]), party, number))
    participant = StubParticipant()
    participant.database.completions = list(enumerate(rows, 1))
    participant.consumed[parse_state_ref(state)] = StateStatus(parse_state_ref(state), winner, 1)
    participant.found[winner] = msgspec.structs.replace(notarise(first), log_offset=1, record_offset=None)
    participant.standing = msgspec.structs.replace(ACTIVE, ledger_end=len(rows))
    async with ApiWorld(participant, **settings).serve() as world:  # type: ignore[arg-type]
        yield Ledger(world.endpoint, state, winner.hex(), loser.hex(), OTHER.name)


@pytest_asyncio.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    """It, without tokens: everybody sees all of it."""
    async with served(tmp_path) as ledger:
        yield ledger


async def search(page: Page, query: str) -> None:
    await page.fill("#query", query)
    await page.press("#query", "Enter")


async def test_a_state_leads_to_its_winner_and_to_those_it_beat(ledger: Ledger, tmp_path: Path) -> None:
    """Goal: who consumed what and when, and whom it refused. Method: search the state, follow the winner, verify."""
    folder = SCREENSHOTS if RENEWING else tmp_path
    async with browser_page(height=SHORT) as (page, complaints):
        await page.goto(ledger.url)
        await search(page, ledger.state)
        rows = page.locator("#result tbody tr")
        await expect(rows).to_have_count(2, timeout=SHOWN_MAX_MS)
        texts = await rows.all_inner_texts()
        assert ["NOTARISED" in texts[0], "STATE_CONFLICT" in texts[1]] == [True, True]
        assert await rows.nth(1).locator(f'a[title="{ledger.state}"]').count() == 1
        await page.screenshot(path=folder / "ledger-explorer.png", full_page=True)
        await page.locator(f'#result dl a[title="{ledger.winner}"]').click()
        verdict = page.locator("#result dd .good")
        await expect(verdict).to_contain_text("valid: this browser checked", timeout=SHOWN_MAX_MS)
        await page.screenshot(path=folder / "ledger-explorer-receipt.png", full_page=True)
        assert complaints == []
        assert "owned" not in await page.title()


@pytest.mark.thorough
async def test_each_token_shows_what_its_holder_may_see(tmp_path: Path) -> None:
    """Goal: the page reads with the caller's rights. Method: no token and a bad one: refused, and the box for one
    opens; then a token of each party: its own rows alone, of a state as well, and nothing for the other's name."""
    issuer = Issuer()
    keys = {"keys_file": issuer.write(tmp_path / "keys.json"), "audience": AUDIENCE}
    async with served(tmp_path, tokens=keys) as ledger, browser_page() as (page, _):
        problem, rows, result = page.locator("#problem"), page.locator("#result tbody tr"), page.locator("#result")
        await page.goto(ledger.url)
        await expect(problem).to_contain_text("TOKEN_MISSING", timeout=SHOWN_MAX_MS)
        await expect(page.locator("#token")).to_be_visible()
        await page.fill("#token", "garbage")
        await page.click("#newest")
        await expect(problem).to_contain_text("TOKEN_INVALID", timeout=SHOWN_MAX_MS)
        for mine, theirs, user in ((BANK, OTHER, "treasury"), (OTHER, BANK, OTHERS_USER)):
            grants = {"act_as": [mine.name]}
            await page.fill("#token", issuer.token(sub=user, expires_at_s=time.time() + 600, notary=grants))
            await page.click("#newest")
            await expect(rows).to_have_count(10, timeout=SHOWN_MAX_MS)
            await expect(problem).to_be_empty()
            assert all(mine.name in text and theirs.name not in text for text in await rows.all_inner_texts())
            await search(page, theirs.name)
            await expect(result).to_contain_text("Nothing that this caller may see", timeout=SHOWN_MAX_MS)
            assert await rows.count() == 0
            await search(page, ledger.state)
            await expect(rows).to_have_count(1, timeout=SHOWN_MAX_MS)
            await expect(rows).to_contain_text("NOTARISED" if mine is BANK else "STATE_CONFLICT")
            assert (ledger.winner in await page.content()) is (mine is BANK), "the winner's id is its owner's"
            await page.evaluate("location.hash = ''")


@pytest.mark.thorough
async def test_a_refused_attempt_leads_to_the_transaction_that_beat_it(ledger: Ledger, tmp_path: Path) -> None:
    """Goal: no dead end at a refusal, which no index knows. Method: newest to attempt, to its state, to the winner; an
    offset at which another transaction is."""
    async with browser_page(height=SHORT) as (page, complaints):
        await page.goto(f"{ledger.url}#2")
        await page.locator(f'#result tbody a[title="{ledger.loser}@2"]').click()
        result = page.locator("#result")
        await expect(result).to_contain_text("STATE_CONFLICT", timeout=SHOWN_MAX_MS)
        await expect(result).to_contain_text(hash_of_tx_id(bytes.fromhex(ledger.winner)).hex())
        folder = SCREENSHOTS if RENEWING else tmp_path
        await page.screenshot(path=folder / "ledger-explorer-attempt.png", full_page=True)
        await result.locator(f'a[title="{ledger.state}"]').click()
        await result.locator(f'dl a[title="{ledger.winner}"]').click()
        await expect(page.locator("#result dd .good")).to_contain_text("valid", timeout=SHOWN_MAX_MS)
        await search(page, f"{ledger.loser}@3")
        await expect(page.locator("#problem")).to_contain_text("no attempt of that", timeout=SHOWN_MAX_MS)
        assert complaints == []


async def test_a_receipt_that_was_changed_is_called_so(ledger: Ledger) -> None:
    """Goal: the verification is one. Method: one bit of the signature, then of the content, changed on the way."""
    async with browser_page() as (page, _):
        for field, found in (("signature", "its signature is wrong"), ("content_digest", "about another transaction")):

            async def changed(route: Route, _: object, field: str = field) -> None:
                answer = await route.fetch()
                document = await answer.json()
                document[field] = f"{int(document[field][:2], 16) ^ 1:02x}{document[field][2:]}"
                await route.fulfill(response=answer, json=document)

            await page.route("**/receipt", changed)
            await page.goto(f"{ledger.url}#{ledger.winner}")
            await page.reload()
            await expect(page.locator("#result dd .bad")).to_contain_text(found, timeout=SHOWN_MAX_MS)
            await page.unroute("**/receipt")


async def test_a_receipt_is_verified_with_its_place(ledger: Ledger) -> None:
    """Goal: the browser verifies where and when. Method: a golden receipt as it is, then each part of its place
    changed, a place taken off, no version and one that nobody knows."""
    golden = json.loads((FOLDER / "receipts/version-2/of-five.json").read_text())
    place = golden["place"]
    parts: list[dict[str, object]] = [{"log_id": place["log_id"][:-1]}, {"log_id": "é"}, {"log_offset": 2**53}]
    parts += [{name: place[name] + 1} for name in ("log_offset", "epoch", "judged_us")]
    forged = [golden | {"place": place | part} for part in parts]
    forged += [
        golden | {"version": 3},
        *({name: value for name, value in golden.items() if name != left_out} for left_out in ("version", "place")),
    ]
    async with browser_page() as (page, _):
        await page.goto(ledger.url)
        said = await page.evaluate(
            """async ([key, receipts]) => {
                keys = [key];
                return await Promise.all(receipts.map(one =>
                    whyNot(one, { ...one, log_offset: one.place?.log_offset })));
            }""",
            [golden["notary_key"], [golden, *forged]],
        )
        assert said[0] == ""
        assert all(said[1:]), said
        elsewhere = {"tx_id": golden["tx_id"], "content_digest": golden["content_digest"], "log_offset": 1}
        other = await page.evaluate("([one, status]) => whyNot(one, status)", [golden, elsewhere])
        assert other == "it is about another log offset"


async def test_receipts_of_a_key_of_p256_are_verified(ledger: Ledger) -> None:
    """Goal: the browser verifies the second algorithm. Method: golden receipts; each with a changed
    signature, and each against a key of the other algorithm."""
    vectors = json.loads((FOLDER / "vectors/receipts_p256.json").read_text())
    good = vectors["receipts"]
    forged = [one | {"signature": f"{int(one['signature'][:2], 16) ^ 1:02x}{one['signature'][2:]}"} for one in good]
    async with browser_page() as (page, _):
        await page.goto(ledger.url)
        said = await page.evaluate(
            """async ([key, receipts]) => {
                keys = [key];
                return await Promise.all(receipts.map(one =>
                    whyNot(one, { ...one, log_offset: one.place?.log_offset })));
            }""",
            [vectors["notary_public_key"], [*good, *forged]],
        )
        assert said == [""] * len(good) + ["its signature is wrong"] * len(good)


@pytest.mark.thorough
async def test_pages_of_a_party_and_of_offsets(ledger: Ledger) -> None:
    """Goal: nothing is loaded that nobody asked for. Method: a party's completions, then offsets, page by page."""
    async with browser_page() as (page, complaints):
        await page.goto(ledger.url)
        rows, more = page.locator("#result tbody tr"), page.locator("#result button")
        await expect(rows).to_have_count(20, timeout=SHOWN_MAX_MS)
        await search(page, ledger.party)
        await expect(rows).to_have_count(16, timeout=SHOWN_MAX_MS)
        assert all(ledger.party in text for text in await rows.all_inner_texts())
        await search(page, "3")
        await expect(rows).to_have_count(20, timeout=SHOWN_MAX_MS)
        assert (await rows.first.inner_text()).split()[0] == "3"
        await more.click()
        await expect(rows).to_have_count(30, timeout=SHOWN_MAX_MS)
        await expect(more).to_be_hidden()
        await search(page, "f" * 64)
        await expect(page.locator("#problem")).to_contain_text("TX_NOT_FOUND", timeout=SHOWN_MAX_MS)
        assert [text for text in complaints if "404" not in text] == []


async def test_a_telephone_shows_all_of_it(ledger: Ledger, tmp_path: Path) -> None:
    """Goal: no sideways scrolling. Method: a narrow window; the page is as wide as it."""
    folder = SCREENSHOTS if RENEWING else tmp_path
    async with browser_page(NARROW, SHORT) as (page, _):
        await page.goto(f"{ledger.url}#{ledger.state}")
        await expect(page.locator("#result tbody tr")).to_have_count(2, timeout=SHOWN_MAX_MS)
        assert await page.evaluate("document.documentElement.scrollWidth") <= NARROW
        await page.screenshot(path=folder / "ledger-explorer-narrow.png", full_page=True)
