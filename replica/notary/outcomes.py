"""The code of each verdict in answers, completions and counts."""

from __future__ import annotations

from replica.notary.codes import Code
from replica.notary.rules import Outcome

NOTARISED = "NOTARISED"
DEDUPLICATED = "DEDUPLICATED"  # a repeated success: the command was accepted before, within its period

CODE_OF = {
    Outcome.DEDUPLICATED: DEDUPLICATED,
    Outcome.COMMAND_ID_REUSED: Code.COMMAND_ID_REUSED.name,
    Outcome.PARTY_UNKNOWN: Code.PARTY_UNKNOWN.name,
    Outcome.KEY_NOT_VALID: Code.KEY_NOT_VALID.name,
    Outcome.NOTARISED: NOTARISED,
    Outcome.TX_ID_REUSED: Code.TX_ID_REUSED.name,
    Outcome.CONFLICT: Code.STATE_CONFLICT.name,
    Outcome.TIME_WINDOW_CLOSED: Code.TIME_WINDOW_CLOSED.name,
}
