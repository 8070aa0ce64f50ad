-- Every look-up of the store's is by key. The planner must not choose a scan of a table because it was small, or not
-- yet analysed, when a statement was first planned. The price that this puts on a plan must not set off compiling it.
SELECT set_config('enable_seqscan', 'off', false), set_config('jit', 'off', false)
