"""Signed submissions made beforehand, as one HTTP body a line, so that a load generator only has to send them.

States and transaction ids are random and never occur twice. What a client may leave out is left out.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random

from ledger_api.client.signing import Party
from ledger_api.wire.submissions import ANONYMOUS
from replica.notary.requests import Submission, format_state_ref, make_request
from replica.notary.terms import Terms, encode_canonical

CHUNK_SUBMISSIONS = 2_000


def fresh_states(random: Random, count: int) -> list[bytes]:
    """References to so many random states."""
    return [random.randbytes(32) + random.randrange(4).to_bytes(4, "big") for _ in range(count)]


def submission(random: Random, party: Party, inputs: list[bytes]) -> dict[str, object]:
    """The document of one signed submission with a random transaction id."""
    tx_id = random.randbytes(32)
    request = make_request(tx_id, inputs, [], None, party.name, ledger_id=party.ledger_id)
    signed = encode_canonical(request, Terms(ANONYMOUS, tx_id.hex(), (party.name,)))
    return {
        "request": {
            "ledger_id": party.ledger_id.hex(),
            "tx_id": tx_id.hex(),
            "inputs": [format_state_ref(ref) for ref in request.inputs],
            "party": party.name,
            "public_key": party.public_key.hex(),
            "signature": party.key.sign(signed).signature.hex(),
        }
    }


def unsigned_submission(random: Random, inputs: int, party: Party) -> Submission:
    """A submission of a party as front ends hand it over, of random states, with a random signature.

    For what lies behind the front ends: they check signatures, and nobody looks at them again.
    """
    tx_id = random.randbytes(32)
    terms = Terms(ANONYMOUS, tx_id.hex(), (party.name,))
    states = fresh_states(random, inputs)
    request = encode_canonical(make_request(tx_id, states, [], None, party.name, ledger_id=party.ledger_id), terms)
    command = (ANONYMOUS, tx_id.hex(), (party.name,), random.randbytes(16).hex())
    return Submission(request, party.public_key, random.randbytes(64), *command)


def fresh_submissions(random: Random, parties: Sequence[Party], inputs: int) -> Iterator[dict[str, object]]:
    """Submissions of so many states each, for ever."""
    while True:
        yield submission(random, random.choice(parties), fresh_states(random, inputs))


@dataclass(frozen=True, slots=True)
class Bodies:
    """A file of bodies, one a line; `offsets[n]` is the byte where line n begins, the last one is the file's end."""

    path: Path
    offsets: list[int]

    @property
    def count(self) -> int:
        """Bodies in the file."""
        return len(self.offsets) - 1


def write_bodies(path: Path, parties: Sequence[Party], count: int, inputs: int, per_body: int) -> Bodies:
    """Write `count` bodies: single submissions when `per_body` is 1, else batches of so many. Uses every core."""
    per_chunk = max(1, CHUNK_SUBMISSIONS // per_body)
    sizes = [min(per_chunk, count - start) for start in range(0, count, per_chunk)]
    make = partial(_make_lines, list(parties), inputs, per_body)
    offsets = [0]
    with path.open("wb") as file, ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for lines in pool.map(make, sizes):
            for line in lines:
                file.write(line)
                offsets.append(offsets[-1] + len(line))
    return Bodies(path, offsets)


def _make_lines(parties: list[Party], inputs: int, per_body: int, count: int) -> list[bytes]:
    source = fresh_submissions(Random(os.urandom(16)), parties, inputs)
    lines = []
    for _ in range(count):
        document: object = next(source)
        if per_body > 1:
            document = {"submissions": [document, *islice(source, per_body - 1)]}
        lines.append(json.dumps(document, separators=(",", ":")).encode() + b"\n")
    return lines
