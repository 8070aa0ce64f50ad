-- Moves the end of the log from %(first)s to %(end)s; no row where it ends elsewhere. For its owner.
UPDATE notary_log.log_head SET end_offset = %(end)s WHERE end_offset = %(first)s
