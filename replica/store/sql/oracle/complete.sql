-- Long values come last: Oracle wants them after all others.
INSERT INTO completion (ledger_offset, log_offset, change_id, user_id, command_id, submission_id, tx_id, content_digest,
                        outcome, notarised_offset, recorded_us, deduplication_us, deduplication_after, act_as, detail)
VALUES (:ledger_offset, :log_offset, :change_id, :user_id, :command_id, :submission_id, :tx_id, :content_digest,
        :outcome, :notarised_offset, :recorded_us, :deduplication_us, :deduplication_after, :act_as, :detail)
