SELECT p.ledger_id::text, p.topic_id, p.epoch, g.replica, g.granted_at, p.published_offset, p.ledger_end,
       (SELECT count(*) FROM command_in_flight) AS in_flight
  FROM participant p LEFT JOIN epoch_grant g USING (epoch)
