"""JSON in which a key is given twice is refused: decoders would take the last value, and others may take the first.

`ledger_api.wire.repeated_keys` does the same for submissions, mostly without reading them a second time.
"""

from __future__ import annotations

import json
from typing import Any

from replica.notary.codes import Code
from replica.notary.errors import BadRequest


def check_keys(raw: bytes) -> None:
    """Refuse a document that gives a key twice, at any depth. Raises BadRequest: MALFORMED_JSON.

    Bytes that are no JSON pass: their reader must refuse them.
    """
    try:
        json.loads(raw, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise given_twice(twice)
    return found


def given_twice(key: str) -> BadRequest:
    """The error for a key that is given twice."""
    return BadRequest(f"the key {key[:100]!r} is given twice", Code.MALFORMED_JSON)
