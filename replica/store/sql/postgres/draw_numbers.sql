-- One more range of sequence numbers, and the server that gave it away, named as in a barrier. The timeline is the one
-- being written: the control file's lags a promotion.
UPDATE worker_numbers SET drawn = drawn + 1
RETURNING drawn,
          'postgres:' || (SELECT system_identifier::text FROM pg_control_system()) || ':'
              || ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint
