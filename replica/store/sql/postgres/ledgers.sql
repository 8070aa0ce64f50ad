-- Every schema of this database that has a participant's tables, and which of them the search path leads to. Temporary
-- tables are no ledger: any login may make some, of any name.
SELECT n.nspname::text AS schema, pg_get_userbyid(c.relowner)::text AS owner,
       c.oid = coalesce(to_regclass('participant')::oid, 0) AS ours
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname = 'participant' AND c.relkind = 'r' AND c.relpersistence <> 't'
   AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'published_position')
 ORDER BY 1
