-- Which of some commands were accepted; the list of change ids is written out to a few lengths only.
SELECT change_id, tx_id, content_digest, notarised_offset
  FROM command_accepted
 WHERE accepted_us >= :accepted_since_us AND ledger_offset > :accepted_after AND change_id IN (:change_ids)
