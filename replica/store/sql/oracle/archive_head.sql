-- The newest head of an archive's manifest.
SELECT lines, hash, last_offset FROM archive_head WHERE archive_id = :archive_id
