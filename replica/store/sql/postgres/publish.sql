-- One transaction: position and ledger end, completions with dense offsets. Nothing happens unless the completions go on
-- from the published position.
WITH moved AS (
    UPDATE participant
       SET ledger_end = ledger_end + %(count)b::bigint, published_offset = %(offset)b::bigint,
           published_position = %(position)b
     WHERE published_offset = %(after)b::bigint
    RETURNING ledger_end - %(count)b::bigint AS ledger_start, ledger_end
),
completed AS (
    INSERT INTO completion (ledger_offset, log_offset, change_id, user_id, command_id, act_as, submission_id, tx_id,
                            content_digest, outcome, notarised_offset, recorded_us, detail, deduplication_us,
                            deduplication_after)
    SELECT ledger_start + ordinal, log_offset, change_id, user_id, command_id, string_to_array(act_as, E'\n'),
           submission_id, tx_id, content_digest, outcome, notarised_offset, recorded_us, detail, deduplication_us,
           deduplication_after
      FROM moved,
           unnest(%(log_offsets)b, %(change_ids)b, %(user_ids)b, %(command_ids)b, %(act_as)b, %(submission_ids)b,
                  %(tx_ids)b, %(content_digests)b, %(outcomes)b, %(notarised_offsets)b, %(recorded_us)b, %(details)b,
                  %(deduplication_us)b, %(deduplication_after)b)
           WITH ORDINALITY AS c (log_offset, change_id, user_id, command_id, act_as, submission_id, tx_id,
                                 content_digest, outcome, notarised_offset, recorded_us, detail, deduplication_us,
                                 deduplication_after, ordinal)
)
SELECT ledger_end FROM moved
