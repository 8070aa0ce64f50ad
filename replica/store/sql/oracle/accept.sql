-- A command that ran again after its deduplication period is known by its latest acceptance.
MERGE INTO command_accepted a
USING (SELECT :change_id AS change_id, :tx_id AS tx_id, :content_digest AS content_digest,
              :notarised_offset AS notarised_offset, :recorded_us AS accepted_us, :ledger_offset AS ledger_offset
         FROM dual) c
   ON (a.change_id = c.change_id)
 WHEN MATCHED THEN UPDATE
      SET a.tx_id = c.tx_id, a.content_digest = c.content_digest, a.notarised_offset = c.notarised_offset,
          a.accepted_us = c.accepted_us, a.ledger_offset = c.ledger_offset
 WHEN NOT MATCHED THEN
      INSERT (change_id, tx_id, content_digest, notarised_offset, accepted_us, ledger_offset)
      VALUES (c.change_id, c.tx_id, c.content_digest, c.notarised_offset, c.accepted_us, c.ledger_offset)
