"""The completions that the product publishes are those that the checker demands, over random logs."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from replica.active.publisher import completions_of
from replica.checker.check import Scope, check
from replica.checker.completions import CompletionRow
from replica.following.apply import judge_records
from replica.index.memory import MemoryIndex
from replica.notary.position import begin
from tests.worlds.notary_logs import TOPIC, Log, logs


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(logs())
def test_the_product_publishes_what_the_checker_demands(log: Log) -> None:
    """Goal: completions are a function of the log alone. Method: the core's against the reference judge's."""
    applied, _ = judge_records(MemoryIndex(), begin(TOPIC), log)
    rows = [
        CompletionRow(ledger_offset, *[getattr(completion, name) for name in CompletionRow.__struct_fields__[1:]])
        for ledger_offset, completion in completions_of(applied)
    ]
    report = check([], log, completions=rows, scope=Scope(complete=False))
    assert not report.counts
    assert report.summary.completions == len(rows)
