-- Every schema of this database that has a participant's tables, whether the search path names it, and which of them it
-- leads to; those first. Temporary tables are no ledger: any login may make some, of any name. The list is bounded,
-- because a login that may make schemas may make many.
SELECT n.nspname::text AS schema, pg_get_userbyid(c.relowner)::text AS owner,
       c.oid = coalesce(to_regclass('participant')::oid, 0) AS ours,
       n.nspname = ANY (current_schemas(false)) AS on_path
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname = 'participant' AND c.relkind = 'r' AND c.relpersistence <> 't'
   AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'published_position')
 ORDER BY ours DESC, on_path DESC, schema
 LIMIT 20
