-- Whether this login may change or delete what is in the log: as its owner, as a superuser, or by a right given to it.
SELECT
    pg_has_role(current_user, c.relowner, 'MEMBER')
    OR has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
    OR has_table_privilege('notary_log.log_head', 'INSERT, UPDATE, DELETE, TRUNCATE')
FROM pg_catalog.pg_class AS c
WHERE c.oid = 'notary_log.log_batch'::regclass
