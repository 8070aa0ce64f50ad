-- One transaction: position and ledger end, completions with dense offsets, commands settled. Nothing happens unless
-- the position goes forward.
WITH moved AS (
    UPDATE participant
       SET ledger_end = ledger_end + %b::bigint, published_offset = %b::bigint, published_position = %b::bytea
     WHERE published_offset < %b::bigint
    RETURNING ledger_end
),
given AS (
    SELECT moved.ledger_end - cardinality(%b::bigint[]) + ordinal AS ledger_offset, t.*
      FROM moved,
           unnest(%b::bigint[], %b::bytea[], %b::text[], %b::text[], %b::text[], %b::text[], %b::bytea[], %b::bytea[],
                  %b::text[], %b::bigint[], %b::bigint[], %b::bytea[], %b::bool[])
           WITH ORDINALITY AS t (log_offset, change_id, user_id, command_id, act_as, submission_id, tx_id,
                  content_digest, outcome, notarised_offset, recorded_us, detail, accepts, ordinal)
),
completed AS (
    INSERT INTO completion
    SELECT ledger_offset, log_offset, change_id, user_id, command_id, string_to_array(act_as, E'\n'), submission_id,
           tx_id, content_digest, outcome, notarised_offset, recorded_us, detail
      FROM given
),
landed AS (
    DELETE FROM command_in_flight f USING given g WHERE f.change_id = g.change_id AND f.submission_id = g.submission_id
),
accepted AS (
    INSERT INTO command_accepted
    SELECT change_id, tx_id, content_digest, notarised_offset, recorded_us, ledger_offset FROM given WHERE accepts
    ON CONFLICT (change_id) DO UPDATE
       SET tx_id = excluded.tx_id, content_digest = excluded.content_digest,
           notarised_offset = excluded.notarised_offset, accepted_us = excluded.accepted_us,
           ledger_offset = excluded.ledger_offset
)
SELECT ledger_end FROM moved
