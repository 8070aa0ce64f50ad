"""Keys in the log: an officer raises the rules to a made-up next version, revokes and registers the clients' key again,
while the faults of a plan strike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from ha.errors import HaError
from replica.active.noting import Noted
from replica.active.signer import FileSigner
from replica.checker.judge import Judged, JudgedRequest
from replica.index.interface import OFFSET_END
from replica.index.newest import officers_of
from replica.notary.errors import LogUnavailable, NotaryError
from replica.notary.note_signatures import signed_note
from replica.notary.parties import OFFICERS, PartyNote, encode_officers, registration_id, registrations_in
from replica.notary.records import ActRecord, RegistrationRecord
from replica.notary.requests import TIME_MAX_US
from tests.next_version.release import NEXT
from tests.simulation.clients import CLIENT_KEY, PARTY
from tests.simulation.draw import draw, leased, worded
from tests.simulation.plan import START_US, Fault, FaultKind, Plan
from tests.simulation.words import SimulatedBoard
from tests.simulation.workers import all_serving
from tests.worlds.beginning import LEDGER, beginning

if TYPE_CHECKING:
    from tests.simulation.world import World

_SIGNER = FileSigner(Ed25519PrivateKey.from_private_bytes(sha256(b"officer").digest()))
BEGINNING = beginning(_SIGNER, (PARTY, CLIENT_KEY))  # of every log
_NOWHERE = (2, bytes(16), 0, 0)
_RETRY_S = 0.2
OF_KEYS = frozenset({"PARTY_UNKNOWN", "KEY_NOT_VALID"})


def registering(seed: int) -> Plan:
    """A plan with an officer. In every third all replicas serve."""
    return _with_an_officer(all_serving(draw(seed)) if seed % 3 == 0 else draw(seed))


def registering_by_lease(seed: int) -> Plan:
    """A plan with an officer under a lease, which is how participants without a database lead; in half of them with
    people who pause fail-over. One replica serves, as the configuration demands."""
    plan = leased(_with_an_officer(draw(seed)))
    return worded(plan) if seed % 2 else plan


def _with_an_officer(plan: Plan) -> Plan:
    seed = plan.seed
    random = Random(f"{seed}/registering")
    faults = list(plan.faults)
    kinds = (FaultKind.CRASH, FaultKind.SESSION_KILLED, FaultKind.STALL)
    for _ in range(random.choice((0, 1, 2))):
        at_s = round(random.uniform(0.2, 0.9) * plan.duration_s, 4)
        faults.append(Fault(random.choice(kinds), at_s, duration_s=round(random.uniform(0.2, 2.0), 3)))
    return replace(
        plan,
        registers=True,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
    )


class Officer:
    """Whoever registers keys. Registrations that were refused or unknown are tried again, perhaps as they are."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = Random(f"{world.plan.seed}/officer")
        self._signed: list[RegistrationRecord] = []
        self.is_done = False

    async def run(self) -> None:
        """The officers once more, the clients' key, the raise, and then changes; in the end the key is in force."""
        random, world = self._random, self._world
        await self._until_effective(self._officers)
        await self._until_effective(lambda: self._registration(0, TIME_MAX_US - 1 - len(self._signed)))
        await asyncio.sleep(random.uniform(0.0, 0.2) * world.plan.duration_s)
        await self._raise()
        world.story.tell("officer", "rules_raised", to=NEXT.rules)
        if random.random() < 0.8 and (holder := world.holder()):
            world.misfortune.switch_over(world.replica(holder))
        await asyncio.sleep(random.uniform(0.0, 0.2) * world.plan.duration_s)
        while not world.healed:
            await asyncio.sleep(random.uniform(0.05, 0.25) * world.plan.duration_s)
            await self._try([self._change()])
        await self._until_effective(lambda: self._registration(0, TIME_MAX_US - 1 - len(self._signed)))
        self.is_done = True

    async def _raise(self) -> None:
        world = self._world
        while world.plan.lease:
            with suppress(LogUnavailable):
                await SimulatedBoard(world, world.replicas[0].name).raise_formats(NEXT)
                return
            await asyncio.sleep(_RETRY_S)
        world.primary.tables.raise_rules(NEXT)

    def _change(self) -> PartyNote:
        now_us = START_US + round(self._world.loop.time() * 1e6)
        match self._random.randrange(6):
            case 0 | 1:
                return self._registration(now_us, now_us)
            case 2:
                return self._registration(now_us - 10**6, now_us + round(self._random.uniform(0.1, 3.0) * 1e6))
            case 3:
                return self._random.choice(self._signed)  # played again: it has no effect
            case _:
                return self._registration(0, TIME_MAX_US - 1 - len(self._signed))

    def _registration(self, from_us: int, until_us: int) -> RegistrationRecord:
        key, pair = _SIGNER.public_key, registration_id(PARTY, CLIENT_KEY)
        newest = [value for one in self._world.replicas for value in one.disk.newest([pair], [OFFSET_END])]
        before = max(map(registrations_in, newest))
        note = RegistrationRecord(*_NOWHERE, PARTY, CLIENT_KEY, before, from_us, until_us, "officer", key, bytes(64))
        self._signed.append(signed_note(note, LEDGER, _SIGNER.sign))
        return self._signed[-1]

    def _officers(self) -> ActRecord:
        key = _SIGNER.public_key
        acts = max(officers_of(replica.disk).acts for replica in self._world.replicas)
        act = ActRecord(*_NOWHERE, OFFICERS, acts, encode_officers([key]), "officer", "sim", key, bytes(64))
        return signed_note(act, LEDGER, _SIGNER.sign)

    async def _until_effective(self, make: Callable[[], PartyNote]) -> None:
        while True:
            noted = await self._try([make()])
            if noted and noted[0].effective:
                return
            await asyncio.sleep(_RETRY_S)

    async def _try(self, notes: Sequence[PartyNote]) -> list[Noted]:
        """Where they are in the log; nothing where that is refused or unknown."""
        holder = self._world.holder()
        core = self._world.replica(holder).core if holder else None
        if core is None:
            return []
        try:
            noted = await core.participant.note(notes)
        except (NotaryError, HaError) as error:
            self._world.story.tell("officer", "refused", detail=str(error)[:60])
            return []
        self._world.story.tell("officer", "noted", at=noted[0].offset, effective=noted[0].effective)
        return noted


def check_refused_keys(world: World, walked: list[Judged]) -> None:
    """Blame the world for a refusal of its own accord of a key that was in force, as far as any reader knew then.

    Every log begins with the registration of the clients' key, so nobody may call it unknown. Nobody may call it
    revoked where no officer changes it.
    """
    refused = [(name, asked, getattr(answer, "code", None)) for name, asked, answer in world.recalled]
    for name, asked, code in refused:
        if code == "PARTY_UNKNOWN" or (code == "KEY_NOT_VALID" and not world.plan.registers):
            world.blame(f"{name} refused a key that was in force, {code}: {asked.submission.command_id}")
    of_keys = {one.outcome for one in walked if isinstance(one, JudgedRequest)} & OF_KEYS
    if of_keys and (not world.plan.registers or "PARTY_UNKNOWN" in of_keys):
        world.blame(f"the log refused a key that was in force: {sorted(of_keys)}")
