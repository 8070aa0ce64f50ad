"""How the logs of made-up worlds begin: as a ledger that was made, led once, and knows who may sign.

Tests of a reader alone have logs that begin with anything: `no_demand`.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from replica.active.signer import FileSigner
from replica.log.interface import RequestLog
from replica.notary.genesis import GenesisRecord, encode_genesis
from replica.notary.granters import Database
from replica.notary.note_signatures import signed_note
from replica.notary.records import BarrierRecord, RegistrationRecord, encode_record
from replica.notary.requests import TIME_MAX_US
from tests.next_version.release import PRESENT

OFFICER = FileSigner(Ed25519PrivateKey.from_private_bytes(b"o" * 32))  # where nothing depends on who it is
LEDGER = b"L" * 16  # the id of the ledger of every made-up world
OTHER_LEDGER = b"another ledger's"
_ACTIVATION = b"the first leader"
_DATABASE = Database("elsewhere", "1", 1)  # another system than any that a world has: each may go on after it


Registered = tuple[str, bytes] | tuple[str, bytes, int, int]  # party, key, and a period [from_us, until_us)


def beginning(officer: FileSigner, *keys: Registered) -> list[bytes]:
    """The first records of a log: genesis, barrier of epoch 1 under today's rules, and the officer's registration
    of each party's key, for ever where no period is given."""
    genesis = GenesisRecord(1, LEDGER, (officer.public_key,))
    barrier = BarrierRecord(1, _ACTIVATION, "R0", _DATABASE, PRESENT.records, PRESENT.rules)
    notes = [_registration(officer, number, *key) for number, key in enumerate(keys)]
    return [encode_genesis(genesis), encode_record(barrier), *map(encode_record, notes)]


def next_barrier(epoch: int, activation_id: bytes, replica: str = "r1") -> bytes:
    """The barrier of a later activation under today's rules, as a value of the log."""
    of = (epoch, activation_id, replica, Database("postgres", "1", 1), PRESENT.records, PRESENT.rules)
    return encode_record(BarrierRecord(*of))


def _registration(
    officer: FileSigner, number: int, party: str, key: bytes, from_us: int = 0, until_us: int = TIME_MAX_US
) -> RegistrationRecord:
    place = (PRESENT.records, _ACTIVATION, number, 0)
    of = (party, key, 0, from_us, until_us, "officer", officer.public_key, bytes(64))
    return signed_note(RegistrationRecord(*place, *of), LEDGER, officer.sign)


async def no_demand(_: RequestLog) -> None:
    """Any log will do."""
