"""Bounds how much the participant has in flight, and how much each user has queued. Nothing waits here.

The weight of a submission is counted in states: its inputs and references, or one for every 36 bytes of its record,
whichever is more. So neither many states nor long texts pass a bound, and a request without states has a weight, too.
"""

from __future__ import annotations

from replica.notary.requests import STATE_REF_BYTES, Submission
from replica.settings import CoreSettings

_RECORD_BYTES = 200  # of a request record beside the request and the submission id: key, signature, root, heads


def weight_of(submission: Submission, states: int) -> int:
    """What a submission of so many states weighs."""
    record_bytes = len(submission.request) + _RECORD_BYTES + len(submission.submission_id.encode())
    return max(states, record_bytes // STATE_REF_BYTES)


class AdmissionBudget:
    """How much is in flight, from the moment it is offered until it is answered. `unpublished`: completions that wait
    for the database; they have a bound too."""

    def __init__(self, settings: CoreSettings) -> None:
        self._settings = settings
        self.submissions = 0
        self.states = 0
        self.unpublished = 0

    @property
    def unpublished_max(self) -> int:
        """So many completions may wait for the database before submissions are refused."""
        return self._settings.publish_backlog_max

    @property
    def free(self) -> tuple[int, int]:
        """So many more submissions, and states, may come in."""
        return self._settings.in_flight_max - self.submissions, self._settings.states_in_flight_max - self.states

    def note_unpublished(self, completions: int) -> None:
        """So many completions are not published yet."""
        self.unpublished = completions

    def enter(self, states: int) -> bool:
        """Take one submission in, unless that passes a bound."""
        fits = (
            self.submissions < self._settings.in_flight_max
            and self.unpublished < self.unpublished_max
            and self.states + states <= self._settings.states_in_flight_max
        )
        if fits:
            self.submissions += 1
            self.states += states
        return fits

    def leave(self, submissions: int, states: int) -> None:
        """Release so many submissions and states."""
        self.submissions -= submissions
        self.states -= states
