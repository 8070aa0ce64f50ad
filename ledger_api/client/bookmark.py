"""Where a reader of completions or updates stopped, and by what it recognises that place in the same ledger."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Self

from ledger_api.client.signing import check_offset
from ledger_api.wire.feed import CompletionDocument, UpdateDocument
from replica.notary.codes import Code
from replica.notary.errors import BadRequest

_FORM = re.compile(r"([0-9]{1,19})-([0-9a-f]{32})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Bookmark:
    """An offset with a digest of what is published there: enough to go on after it, in the same ledger only.

    What is published at an offset never changes, whatever database or topic it is restored to. So a ledger that has
    something else at the offset is another one. `str` makes a text to keep, `parse` reads it.
    """

    offset: int
    digest: str

    @classmethod
    def of(cls, entry: CompletionDocument | UpdateDocument) -> Self:
        """The bookmark at an entry that was processed."""
        # only what the log decided: which parties are shown depends on the reader's rights
        parts = (entry.offset, entry.tx_id, entry.content_digest, entry.log_offset, entry.recorded_at)
        return cls(entry.offset, hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:32])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises BadRequest."""
        found = _FORM.fullmatch(text)
        if found is None or int(found[1]) < 1:
            raise BadRequest(f"a bookmark is an offset and a digest, not {text[:80]!r}", Code.QUERY_INVALID)
        check_offset(int(found[1]))
        return cls(int(found[1]), found[2])

    def __str__(self) -> str:
        return f"{self.offset}-{self.digest}"
