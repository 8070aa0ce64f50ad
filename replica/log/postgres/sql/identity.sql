-- Which server this is. The timeline is the one being written: the control file's lags a promotion.
SELECT
    (SELECT system_identifier::text FROM pg_control_system()),
    pg_is_in_recovery(),
    CASE WHEN pg_is_in_recovery() THEN 0
         ELSE ('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint END,
    current_setting('transaction_isolation'),
    current_setting('synchronous_commit')
