SELECT change_id, tx_id, content_digest, NULL::bigint AS notarised_offset
  FROM command_in_flight WHERE change_id = ANY (%b::bytea[])
UNION ALL
SELECT change_id, tx_id, content_digest, notarised_offset
  FROM command_accepted WHERE change_id = ANY (%b::bytea[]) AND accepted_us >= %b::bigint
