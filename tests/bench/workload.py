"""Signed submissions made beforehand, as one HTTP body a line, so that a load generator only has to send them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from nacl.signing import SigningKey

from replica.notary.canonical import encode_request
from replica.notary.requests import format_state_ref, make_request

PARTIES = 20


@dataclass(frozen=True, slots=True)
class Party:
    """A requesting party and its key."""

    name: str
    key: SigningKey

    @property
    def public_key(self) -> str:
        """The raw Ed25519 public key in hexadecimal."""
        return self.key.verify_key.encode().hex()


def make_parties(count: int = PARTIES) -> list[Party]:
    """Parties with keys that are always the same: they protect nothing."""
    return [
        Party(f"CN=Bench {number},O=Bench,C=GB", SigningKey(number.to_bytes(32, "big")))
        for number in range(1, count + 1)
    ]


def submission(random: Random, party: Party, inputs: list[bytes], tx_id: bytes | None = None) -> dict[str, object]:
    """The document of one signed submission, with a random transaction id unless one is given."""
    tx_id = random.randbytes(32) if tx_id is None else tx_id
    request = make_request(tx_id, inputs, [], None, party.name)
    return {
        "request": {
            "tx_id": tx_id.hex(),
            "inputs": [format_state_ref(ref) for ref in request.inputs],
            "party": party.name,
            "public_key": party.public_key,
            "signature": party.key.sign(encode_request(request)).signature.hex(),
        }
    }


def fresh_submissions(random: Random, parties: list[Party], inputs: int) -> Iterator[dict[str, object]]:
    """Submissions of so many random states each; no state occurs twice."""
    while True:
        refs = [random.randbytes(32) + random.randrange(4).to_bytes(4, "big") for _ in range(inputs)]
        yield submission(random, random.choice(parties), refs)


@dataclass(frozen=True, slots=True)
class Bodies:
    """A file of bodies, one a line; `offsets[n]` is where line n begins."""

    path: Path
    offsets: list[int]


def write_bodies(path: Path, count: int, inputs: int, per_body: int, seed: int | None = None) -> Bodies:
    """Write `count` bodies: single submissions when `per_body` is 1, else batches of so many."""
    random = Random(os.urandom(16) if seed is None else seed)  # fresh ids in each run: a log may be reused
    source = fresh_submissions(random, make_parties(), inputs)
    offsets, at = [], 0
    with path.open("wb") as file:
        for _ in range(count):
            document: object = next(source)
            if per_body > 1:
                document = {"submissions": [document, *(next(source) for _ in range(per_body - 1))]}
            line = json.dumps(document, separators=(",", ":")).encode() + b"\n"
            offsets.append(at)
            at += len(line)
            file.write(line)
    return Bodies(path, offsets)
