-- One transaction: position and ledger end, completions. Nothing happens unless the completions go on from the published
-- position. Where they leave a gap, all before it counts as gone: readers rely on there being none.
WITH moved AS (
    UPDATE participant
       SET ledger_end = %(ledger_end)b::bigint, published_offset = %(offset)b::bigint,
           published_position = %(position)b,
           pruned_to = CASE WHEN ledger_end < %(whole_from)b::bigint THEN %(whole_from)b::bigint ELSE pruned_to END
     WHERE published_offset = %(after)b::bigint AND ledger_end <= %(starts_after)b::bigint
    RETURNING pruned_to
),
completed AS (
    INSERT INTO completion (ledger_offset, log_offset, change_id, user_id, command_id, act_as, submission_id, tx_id,
                            content_digest, outcome, notarised_offset, recorded_us, detail, deduplication_us,
                            deduplication_after)
    SELECT ledger_offset, log_offset, change_id, user_id, command_id, string_to_array(act_as, E'\n'),
           submission_id, tx_id, content_digest, outcome, notarised_offset, recorded_us, detail, deduplication_us,
           deduplication_after
      FROM moved,
           unnest(%(ledger_offsets)b, %(log_offsets)b, %(change_ids)b, %(user_ids)b, %(command_ids)b, %(act_as)b,
                  %(submission_ids)b, %(tx_ids)b, %(content_digests)b, %(outcomes)b, %(notarised_offsets)b,
                  %(recorded_us)b, %(details)b, %(deduplication_us)b, %(deduplication_after)b)
           AS c (ledger_offset, log_offset, change_id, user_id, command_id, act_as, submission_id, tx_id,
                 content_digest, outcome, notarised_offset, recorded_us, detail, deduplication_us, deduplication_after)
)
SELECT pruned_to FROM moved
