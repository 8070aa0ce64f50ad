-- Sessions that go by the names of replicas. When one last did something is told to its own role, and to pg_monitor.
SELECT pid, application_name AS name, coalesce(usename, '') AS user, coalesce(host(client_addr), '') AS address,
       (extract(epoch FROM greatest(query_start, state_change)) * 1000000)::bigint AS moved_us
  FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = ANY (%(names)s) AND pid <> pg_backend_pid()
 ORDER BY pid
