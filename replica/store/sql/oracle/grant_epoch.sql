INSERT INTO epoch_grant (epoch, replica, granted_at) VALUES (:epoch, :replica, SYS_EXTRACT_UTC(SYSTIMESTAMP))
