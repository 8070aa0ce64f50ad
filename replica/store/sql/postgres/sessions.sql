-- Sessions that go by the names of replicas, those first that may be replicas: their login is ours, or may write the
-- ledger. Only its own role and pg_monitor see when one last did something. Any login may open many: the list is bounded.
SELECT pid, application_name AS name, coalesce(usename, '') AS user, coalesce(host(client_addr), '') AS address,
       (extract(epoch FROM greatest(query_start, state_change)) * 1000000)::bigint AS moved_us,
       coalesce(usename = current_user, false)
       OR coalesce(has_table_privilege(usesysid, to_regclass('completion')::oid, 'INSERT'), false) AS writes
  FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = ANY (%(names)s) AND pid <> pg_backend_pid()
 ORDER BY writes DESC, pid
 LIMIT 50
