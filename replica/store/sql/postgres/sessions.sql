-- Sessions that go by the names of replicas, those first that may be replicas: their login is ours, or may write the
-- ledger. When one last did something is told to its own role, and to pg_monitor. Any login may open many: not all are told.
SELECT pid, application_name AS name, coalesce(usename, '') AS user, coalesce(host(client_addr), '') AS address,
       (extract(epoch FROM greatest(query_start, state_change)) * 1000000)::bigint AS moved_us,
       coalesce(usename = current_user, false)
       OR coalesce(has_table_privilege(usesysid, to_regclass('completion')::oid, 'INSERT'), false) AS writes
  FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = ANY (%(names)s) AND pid <> pg_backend_pid()
 ORDER BY writes DESC, pid
 LIMIT 50
