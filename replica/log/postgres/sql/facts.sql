-- What the log's safety rests on, beside its rows.
SELECT
    current_setting('fsync'),
    current_setting('full_page_writes'),
    current_setting('synchronous_commit'),
    notary_log.sees_standbys(),
    (
        SELECT count(*) FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace = 'notary_log'::regnamespace AND c.relkind IN ('r', 'p') AND c.relpersistence <> 'p'
    )
