"""The requests that the demo notarises: a file of transactions, one JSON document a line, plain or compressed.

    {"tx_id": "<64 hexadecimal digits>", "inputs": ["<64 hexadecimal digits>:<index>", ...]}

Other fields are ignored. The parties, keys and signatures are the demo's own.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import msgspec

from replica.notary.errors import BadRequest, ConfigError
from replica.notary.genesis import NO_LEDGER
from replica.notary.requests import make_request, parse_state_ref, parse_tx_id
from replica.notary.untrusted import UNREADABLE

SHARED_FILE = Path("../shared/data/mainnet-requests.jsonl.gz")
_EXCERPT = "mainnet-excerpt.jsonl"


@dataclass(frozen=True, slots=True)
class DemoRequest:
    """A transaction: its id, and the states that it consumes."""

    tx_id: bytes
    inputs: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class RequestFile:
    """What was read. `left_out` requests repeat an id or consume a state that an earlier one consumes."""

    origin: str
    requests: tuple[DemoRequest, ...]
    left_out: int


class _Line(msgspec.Struct):
    tx_id: str
    inputs: list[str]


_decoder = msgspec.json.Decoder(_Line)


def find_requests(named: Path | None) -> RequestFile:
    """The requests in the named file, else in SHARED_FILE if it exists, else in the excerpt that we ship.

    Raises ConfigError naming the line that is none.
    """
    if named is not None:
        return _read(named, str(named))
    if SHARED_FILE.exists():
        return _read(SHARED_FILE, str(SHARED_FILE))
    with as_file(files(__package__).joinpath(_EXCERPT)) as path:
        return _read(path, "an excerpt of Bitcoin's main chain that the project ships")


def parse_requests(lines: Iterable[bytes], origin: str) -> RequestFile:
    """The requests in lines of a file. Raises ConfigError naming the line that is none."""
    requests: list[DemoRequest] = []
    ids: set[bytes] = set()
    consumed: set[bytes] = set()
    left_out = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            request = _parse(line)
        except (*UNREADABLE, BadRequest) as error:
            problem = error.detail if isinstance(error, BadRequest) else str(error)
            raise ConfigError(f"{origin}, line {number}: {problem}") from None
        if request.tx_id in ids or not consumed.isdisjoint(request.inputs):
            left_out += 1
            continue
        ids.add(request.tx_id)
        consumed.update(request.inputs)
        requests.append(request)
    if not requests:
        raise ConfigError(f"{origin} has no request")
    return RequestFile(origin, tuple(requests), left_out)


def _parse(line: bytes) -> DemoRequest:
    document = _decoder.decode(line)
    inputs = [parse_state_ref(text) for text in document.inputs]
    tx_id = parse_tx_id(document.tx_id)
    request = make_request(tx_id, inputs, [], None, "nobody", ledger_id=NO_LEDGER)  # enforces the limits
    return DemoRequest(request.tx_id, request.inputs)


def _read(path: Path, origin: str) -> RequestFile:
    try:
        with path.open("rb") as plain:
            compressed = plain.read(2) == b"\x1f\x8b"
        with gzip.open(path) if compressed else path.open("rb") as lines:
            return parse_requests(lines, origin)
    except (OSError, EOFError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
