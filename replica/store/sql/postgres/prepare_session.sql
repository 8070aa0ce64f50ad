-- Every look-up of the store's is by key. The planner must not choose a scan of a table because it was small, or not
-- yet analysed, when a statement was first planned.
SELECT set_config('enable_seqscan', 'off', false), set_config('enable_hashjoin', 'off', false),
       set_config('enable_mergejoin', 'off', false)
