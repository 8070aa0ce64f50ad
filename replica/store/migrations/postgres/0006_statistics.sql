-- usable from version 1
--
-- What the planner learns about columns that no plan depends on is not worth finding out: to analyse the arrays of a
-- hundred admissions means to sort a million ids, every time autovacuum comes by.

ALTER TABLE admission
    ALTER change_ids SET STATISTICS 0, ALTER user_ids SET STATISTICS 0, ALTER command_ids SET STATISTICS 0,
    ALTER act_as SET STATISTICS 0, ALTER submission_ids SET STATISTICS 0, ALTER tx_ids SET STATISTICS 0,
    ALTER content_digests SET STATISTICS 0, ALTER submitted_us SET STATISTICS 0;

ALTER TABLE command_accepted
    ALTER change_id SET STATISTICS 10, ALTER tx_id SET STATISTICS 0, ALTER content_digest SET STATISTICS 0,
    ALTER notarised_offset SET STATISTICS 0, ALTER accepted_us SET STATISTICS 0, ALTER ledger_offset SET STATISTICS 0;

-- Three columns are what `command_in_flight` selects and groups by.
ALTER TABLE completion
    ALTER ledger_offset SET STATISTICS 10, ALTER change_id SET STATISTICS 10, ALTER submission_id SET STATISTICS 10,
    ALTER log_offset SET STATISTICS 0, ALTER user_id SET STATISTICS 0, ALTER command_id SET STATISTICS 0,
    ALTER act_as SET STATISTICS 0, ALTER tx_id SET STATISTICS 0, ALTER content_digest SET STATISTICS 0,
    ALTER outcome SET STATISTICS 0, ALTER notarised_offset SET STATISTICS 0, ALTER recorded_us SET STATISTICS 0,
    ALTER detail SET STATISTICS 0;
