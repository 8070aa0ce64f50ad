"""COMMAND_ID_REUSED is right only if the same command was also submitted for another transaction or content."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from replica.checker.findings import FindingCode, Findings
from replica.checker.judge import Judged, JudgedLost, JudgedRequest
from replica.checker.operations import COMMAND_ID_REUSED, Operation

_Other = tuple[bytes, bytes, int]  # transaction id, content digest, offset in the log; -1 while it is not known


class ReuseCheck:
    """Reads the log record by record, and collects the commands in it.

    A submission that is in no record may still arrive, so an operation whose outcome is unknown counts as evidence.
    The command of a lost record is known only from operations that were answered from that record.
    """

    def __init__(self, operations: Iterable[Operation]) -> None:
        operations = list(operations)
        self._refused = [o for o in operations if o.answer is not None and o.answer.code == COMMAND_ID_REUSED]
        wanted = {operation.change_id for operation in self._refused if operation.change_id is not None}
        self._others: dict[bytes, set[_Other]] = defaultdict(set)
        self._wanted = wanted
        self._answered: dict[int, list[Operation]] = defaultdict(list)  # by the record that the answer names
        self._first_lost: int | None = None
        for operation in operations if wanted else ():
            change, digest, answer = operation.change_id, operation.content_digest, operation.answer
            if change is None or change not in wanted or digest is None:
                continue
            if answer is None:
                self._others[change].add((operation.tx_id, digest, -1))
            elif answer.record_offset is not None:
                self._answered[answer.record_offset].append(operation)

    def see(self, judged: Judged) -> None:
        """The next record of the log."""
        if not self._wanted:
            return
        if isinstance(judged, JudgedRequest):
            if judged.change_id in self._wanted:
                self._others[judged.change_id].add((judged.request.tx_id, judged.content_digest, judged.offset))
        elif isinstance(judged, JudgedLost):
            self._first_lost = judged.offset if self._first_lost is None else self._first_lost
            for operation in self._answered[judged.offset]:
                if operation.change_id is not None and operation.content_digest is not None:
                    self._others[operation.change_id].add((operation.tx_id, operation.content_digest, judged.offset))

    def finish(self, may_precede: Callable[[bytes, int, int], bool], findings: Findings) -> None:
        """The log has ended. `may_precede`: whether the transaction at a log offset can have been sent before a moment
        (ns)."""
        for operation in self._refused:
            answer, change = operation.answer, operation.change_id
            if answer is None or change is None:
                continue
            if self._first_lost is not None and may_precede(b"", self._first_lost, answer.at_ns):
                continue  # the lost record may be that of a command that is not in the history
            own = (operation.tx_id, operation.content_digest)
            others = [other for other in self._others[change] if other[:2] != own]
            if not any(may_precede(tx_id, offset, answer.at_ns) for tx_id, _, offset in others):
                problem = "nothing else" if not others else "nothing else before the answer"
                findings.add(
                    FindingCode.REFUSED_WRONGLY,
                    operation=operation.name,
                    answer=answer.code,
                    problem=f"{problem} was submitted under this command",
                )
