-- Records a batch as in flight, unless one of those that are asked for was accepted already: then it only returns those.
WITH accepted AS (
    SELECT change_id, tx_id, content_digest, notarised_offset, ledger_offset, accepted_us
      FROM command_accepted
     WHERE change_id = ANY (%(asked_ids)b) AND accepted_us >= %(accepted_since_us)b::bigint
       AND ledger_offset > %(accepted_after)b::bigint
),
admitted AS (
    INSERT INTO admission (number, ledger_end, change_ids, user_ids, command_ids, act_as, submission_ids, tx_ids,
                           content_digests, submitted_us)
    SELECT %(number)b::bigint, ledger_end, %(change_ids)b, %(user_ids)b, %(command_ids)b, %(act_as)b, %(submission_ids)b,
           %(tx_ids)b, %(content_digests)b, %(submitted_us)b
      FROM participant
     WHERE NOT EXISTS (SELECT FROM accepted)
)
SELECT change_id, tx_id, content_digest, notarised_offset, ledger_offset, accepted_us,
       (SELECT c.submission_id FROM completion c WHERE c.ledger_offset = accepted.ledger_offset)
  FROM accepted
