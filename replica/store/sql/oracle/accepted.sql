-- Which of some commands were accepted; the list of change ids is written out to a few lengths only.
SELECT change_id, tx_id, content_digest, notarised_offset, ledger_offset, accepted_us,
       (SELECT c.submission_id FROM completion c WHERE c.ledger_offset = command_accepted.ledger_offset) AS submission_id
  FROM command_accepted
 WHERE accepted_us >= :accepted_since_us AND ledger_offset > :accepted_after AND change_id IN (:change_ids)
