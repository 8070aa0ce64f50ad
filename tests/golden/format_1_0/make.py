"""Makes `tests/golden/vectors/format_1_0.json`, the same on each run: `python -m tests.golden.format_1_0.make`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.golden.format_1_0 import proofs
from tests.golden.format_1_0 import transaction as tx_format
from tests.golden.format_1_0.judge import AGREES, FORMAT, NOT_JUDGED, RULES, STEP, Decision, Reader
from tests.golden.format_1_0.packing import Value, pack, unpack
from tests.golden.format_1_0.transaction import NEVER, Owner, Transaction, derived_id
from tests.golden.format_1_0.tree import root

VECTORS = Path(__file__).parents[1] / "vectors" / "format_1_0.json"
LEDGER, ANCESTOR, ACTIVATION, OTHER_ACTIVATION = bytes([1] * 16), bytes([2] * 16), bytes([3] * 16), bytes([4] * 16)
BANK, USER, LOG_ID = "O=Bank A, L=London, C=GB", "app-1", "kafka-topic-id"
SALVAGE, LOST_AT = bytes([9] * 32), 34
BEGIN_US, HOUR_US = 1_790_000_000_000_000, 3_600_000_000


class Signer:
    """A key pair made from a number."""

    def __init__(self, number: int) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(bytes([number] * 32))
        self.key = b"\x01" + self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def sign(self, raw: bytes) -> bytes:
        """The signature, 64 bytes."""
        return self._private.sign(raw)


OFFICER, PARTY, ALICE, BOB, CAROL, NOTARY = map(Signer, range(11, 17))
P256_KEY = b"\x02" + ec.derive_private_key(17, ec.SECP256R1()).public_key().public_bytes(
    Encoding.X962, PublicFormat.CompressedPoint
)


def state(of: bytes, output: int) -> bytes:
    """A reference to an output."""
    return of + output.to_bytes(4, "big")


class Log:
    """Writes records with rising sequence numbers and stamps, and reads each at once."""

    def __init__(self, salvages: Mapping[bytes, Sequence[tuple[bytes, bytes]]] | None = None) -> None:
        self.reader, self.records = Reader(LOG_ID, salvages), list[bytes]()
        self.sequence, self.stamp_us = 0, BEGIN_US
        self.decisions: list[Decision] = []

    def append(self, raw: bytes) -> Decision:
        """Append any bytes."""
        self.records.append(raw)
        self.decisions.append(self.reader.read(raw))
        return self.decisions[-1]

    def record(self, kind: int, *elements: Value, activation: bytes = ACTIVATION) -> bytes:
        """The bytes of a record that the activation in force would write next."""
        self.sequence += 1
        self.stamp_us += 1_000
        return pack([kind, FORMAT, activation, self.sequence - 1, self.stamp_us, *elements])

    def request(self, tx: Transaction, shown: list[bytes] | None = None, consenting: tuple[Signer, ...] = ()) -> bytes:
        """A request record, signed by PARTY."""
        raw = tx_format.encode(tx)
        kind, value = tx.deduplication
        period_us = {0: HOUR_US, 1: value, 2: NEVER}[kind]
        consents = sorted([one.key, one.sign(tx_format.consent_bytes(tx))] for one in consenting)
        disclosure, opened = tx_format.disclosure_root(tx), sorted(shown or [])
        return self.record(
            1, raw, period_us, "attempt-1", PARTY.key, PARTY.sign(raw), disclosure, [*opened], [*map(list, consents)]
        )

    def note(self, kind: int, subject: str, before: int, body: bytes, by: Signer = OFFICER) -> bytes:
        """A note record."""
        signed: list[Value] = [kind, subject, before, body, "Olive Officer", "as agreed", by.key]
        return self.record(3, *signed, by.sign(b"notary/note/1" + LEDGER + pack(signed)))


def transaction(number: int, *inputs: bytes, command: str = "", **fields: Any) -> Transaction:
    """A transaction of BANK with an id made from a number."""
    tx_id = sha256(number.to_bytes(4, "big")).digest()
    return Transaction(LEDGER, tx_id, tuple(sorted(inputs)), BANK, USER, command or f"c{number}", (BANK,), **fields)


def barrier(epoch: int, activation: bytes, granter: list[Value], term: Value = None) -> bytes:
    """A barrier of this format."""
    return pack([0, epoch, activation, "r1", granter, FORMAT, RULES, term])


def genesis() -> bytes:
    """A genesis with one officer, and no ancestor."""
    return pack([8, 1, LEDGER, [OFFICER.key], [9_999, 1_000_000, 24 * HOUR_US], []])


def lost_record(offset: int, judged_us: int, ledger_offset: int = 40) -> bytes:
    """A record in place of one that is gone, with SALVAGE."""
    return b"notary/lost/2" + b"".join(one.to_bytes(8, "big") for one in (offset, ledger_offset, judged_us)) + SALVAGE


def salvaged_source() -> bytes:
    """The state that a lost transaction consumed."""
    return state(sha256(b"consumed in a lost record").digest(), 0)


def salvaged() -> list[tuple[bytes, bytes]]:
    """The entries of a salvage at LOST_AT: a transaction, its command, and that PARTY is registered once more."""
    at, judged = LOST_AT.to_bytes(8, "big"), BEGIN_US.to_bytes(8, "big")
    tx = transaction(40, salvaged_source())
    content, one = tx_format.content_digest(tx), (1).to_bytes(8, "big")
    registration = pack([PARTY.key, 0, NEVER])
    pair = b"n\1" + len(BANK).to_bytes(2, "big") + BANK.encode() + PARTY.key
    return [
        (b"c" + tx_format.change_id(tx), tx.tx_id + content + judged + (20).to_bytes(8, "big") + at),
        (pair + at, (4).to_bytes(8, "big") + registration + at),
        (b"s" + salvaged_source(), tx.tx_id + at),
        (b"t" + tx.tx_id, content + one + judged + at),
    ]


def sample_log() -> Log:
    """A log in which each kind of record and each outcome occurs."""
    log = Log({SALVAGE: salvaged()})
    database: list[Value] = ["postgres", "7310000000000000001", 1]
    log.append(genesis())
    log.append(barrier(1, ACTIVATION, [0, *database]))
    log.append(log.note(1, BANK, 0, pack([PARTY.key, 0, NEVER])))
    log.append(log.record(2))
    salt = bytes(range(16))
    shared = tx_format.opening(salt, 2, sorted([ALICE.key, BOB.key, CAROL.key]))
    owner = tx_format.owner_of(shared)
    source = state(sha256(b"issued elsewhere").digest(), 0)
    issue = transaction(1, source, owners=(Owner(0, owner), Owner(1, owner, BEGIN_US + HOUR_US)), seed=bytes([5] * 32))
    log.append(log.request(issue))  # notarised
    log.append(log.request(issue))  # deduplicated
    log.append(log.request(replace(issue, command_id="c1-again")))  # notarised before
    log.append(log.request(replace(issue, command_id="other", from_us=1)))  # id reused
    owned, timed = state(issue.tx_id, 0), state(issue.tx_id, 1)
    log.append(log.request(transaction(2, owned), [shared], (ALICE,)))  # consent missing: one of two
    log.append(log.request(transaction(3, owned), [], (ALICE, BOB)))  # consent missing: no opening
    log.append(log.request(transaction(4, owned), [shared], (ALICE, CAROL)))  # notarised
    late = transaction(5, source, owned, references=(timed,))
    log.append(log.request(late))  # conflict on two inputs
    log.append(log.request(transaction(4, timed, command="c4")))  # command reused
    log.append(log.request(transaction(6, until_us=BEGIN_US)))  # window closed
    log.append(log.request(replace(transaction(7), party="O=Nobody, L=Paris, C=FR")))  # party unknown
    free = replace(transaction(8), deduplication=(2, 1))
    log.append(log.request(free))  # notarised, without inputs
    log.append(log.request(derived_id(transaction(9), bytes([7] * 32))))  # notarised, derived id
    log.stamp_us += HOUR_US
    log.append(log.request(transaction(10, timed)))  # notarised: free by now
    spent_output = transaction(11, state(transaction(12).tx_id, 3))
    log.append(log.request(spent_output))
    log.append(log.request(transaction(12, owners=(Owner(3, owner),))))  # conflict on an output
    log.append(log.request(replace(transaction(13), ledger_id=ANCESTOR)))  # undecodable: another ledger
    log.append(log.records[-2])  # repeat
    log.append(log.record(2, activation=OTHER_ACTIVATION))  # not in force
    log.append(barrier(1, OTHER_ACTIVATION, [0, *database]))  # not higher
    log.append(log.records[1])  # the barrier in force once more
    log.append(log.note(1, BANK, 1, pack([PARTY.key, 0, 0])))  # revoked
    log.append(log.request(transaction(14)))  # key not valid
    log.append(log.records[2])  # played again as it stands: repeat
    fields = unpack(log.records[2])
    assert isinstance(fields, list)
    log.append(log.record(3, *fields[5:]))  # played again with a new number: without effect
    log.append(log.note(1, BANK, 2, pack([PARTY.key, 0, NEVER]), by=BOB))  # no officer's: without effect
    log.append(log.note(1, BANK, 2, pack([PARTY.key, 0, NEVER])))  # whose number nobody else used up
    log.append(log.note(1, BANK, 2, pack([PARTY.key, 0, 0])))  # its number is used: without effect
    log.append(log.note(2, "site/halt", 0, b"\x01"))
    log.append(log.note(3, "", 0, pack([0, 4, bytes(32), [7, 9], None, ["east", 2]])))
    lost_us = log.stamp_us + HOUR_US
    lost = lost_record(LOST_AT, lost_us)
    log.append(lost)
    log.append(lost)  # stands at another offset than it names
    log.append(log.request(transaction(15, salvaged_source())))  # conflict with a transaction of the salvage
    log.append(
        log.request(transaction(16, until_us=lost_us))
    )  # window closed: the time judged goes on after the lost one
    log.append(barrier(2, OTHER_ACTIVATION, [1, 3], ["east", 2]))
    log.sequence = 0
    log.append(log.record(2, activation=OTHER_ACTIVATION))
    log.append(log.record(4, STEP, bytes(32), activation=OTHER_ACTIVATION))  # checkpoint, not judged
    log.append(barrier(3, ACTIVATION, [1, log.reader.offset - 1]))  # holder wrote
    log.append(barrier(4, ACTIVATION, [2, "r1"]))  # released
    log.append(barrier(5, OTHER_ACTIVATION, [3, *database, "r1"]))  # paused
    log.append(b"\xc1")
    return log


def long_log() -> Log:
    """A log that is long enough for checkpoints to be judged: one that agrees, one that differs, one that is late."""
    log = Log()
    log.append(genesis())
    log.append(barrier(1, ACTIVATION, [0, "postgres", "1", 1]))
    while log.reader.offset < STEP - 1:
        log.append(log.record(2))
    at_step = root(log.reader.frontier)
    log.append(log.record(4, STEP, at_step))
    log.append(log.record(4, STEP, bytes(32)))
    while log.reader.offset < 3 * STEP:
        log.append(log.record(2))
    log.append(log.record(4, STEP, at_step))
    return log


def document() -> dict[str, Any]:
    """All vectors, byte strings in hexadecimal."""
    log, long = sample_log(), long_log()
    return {
        "about": "docs/format-1.0.md; made by tests/golden/format_1_0, which shares no code with the product",
        "transactions": list(_transactions()),
        "owners": [_owner(1, [ALICE.key]), _owner(2, [CAROL.key, P256_KEY, ALICE.key])],
        "log": [
            {
                "record": raw.hex(),
                "outcome": one.outcome,
                "void": one.void,
                "states": [[part.hex() if isinstance(part, bytes) else part for part in row] for row in one.states],
                "leaf": one.leaf.hex(),
            }
            for raw, one in zip(log.records, log.decisions, strict=True)
        ],
        "salvages": {SALVAGE.hex(): {key.hex(): value.hex() for key, value in salvaged()}},
        "root": root(log.reader.frontier).hex(),
        "proofs": _proofs(log),
        "position": log.reader.position.hex(),
        "index_00": (_counted(log).to_bytes(8, "big") + log.reader.position).hex(),
        "entries": {key.hex(): value.hex() for key, value in sorted(log.reader.entries.items())},
        "long_log": {
            "records": len(long.records),
            "checkpoints": {
                str(at): one.outcome for at, one in enumerate(long.decisions) if AGREES <= one.outcome <= NOT_JUDGED
            },
            "root": root(long.reader.frontier).hex(),
            "position_sha256": sha256(long.reader.position).hexdigest(),
        },
    }


def _owner(threshold: int, keys: list[bytes]) -> dict[str, str]:
    shown = tx_format.opening(bytes(range(16)), threshold, sorted(keys))
    return {"opening": shown.hex(), "owner": tx_format.owner_of(shown).hex()}


def _counted(log: Log) -> int:
    return sum(key[:1] in (b"c", b"n", b"o", b"s", b"t") for key in log.reader.entries)


def _proofs(log: Log) -> dict[str, Any]:
    """Of the record at offset 6, a transaction that was notarised before. The checkpoint key is the notary's."""
    leaves = [one.leaf for one in log.decisions]
    hashes = [sha256(b"\0" + leaf).digest() for leaf in leaves]
    origin, size = f"notary.example/{LEDGER.hex()}/1", len(leaves)
    protected = proofs.protected_header(origin, size, NOTARY.key)
    return {
        "checkpoint": proofs.checkpoint(origin, size, root(log.reader.frontier), NOTARY.key, NOTARY.sign),
        "cose_receipt": proofs.cose_receipt(protected, hashes, 6, NOTARY.sign).hex(),
        "batch_receipt": proofs.batch_receipt(LEDGER, leaves[4:7], 2, NOTARY.key, NOTARY.sign),
    }


def _transactions() -> Iterator[dict[str, Any]]:
    first, second = state(bytes([6] * 32), 0), state(bytes([6] * 32), 1)
    owners = (Owner(0, bytes([8] * 32)), Owner(7, bytes([9] * 32), BEGIN_US))
    yield _shown("smallest", transaction(20))
    yield _shown("usual", transaction(21, first, second))
    full = transaction(22, first, references=(second,), owners=owners, from_us=5, until_us=BEGIN_US)
    full = replace(full, act_as=("A", "B"), deduplication=(1, HOUR_US), seed=bytes([5] * 32))
    yield _shown("everything", derived_id(full, bytes([7] * 32)))


def _shown(name: str, tx: Transaction) -> dict[str, Any]:
    parts = [] if tx.seed is None else tx_format.parts(tx, tx.seed)
    return {
        "name": name,
        "canonical": tx_format.encode(tx).hex(),
        "tx_id": tx.tx_id.hex(),
        "content_digest": tx_format.content_digest(tx).hex(),
        "change_id": tx_format.change_id(tx).hex(),
        "consent_bytes": tx_format.consent_bytes(tx).hex(),
        "parts": [part.hex() for part in parts],
        "disclosure_root": tx_format.disclosure_root(tx).hex(),
    }


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(document(), indent=1) + "\n")
