INSERT INTO command_in_flight (change_id, user_id, command_id, submission_id, tx_id, content_digest, submitted_us, act_as)
VALUES (:change_id, :user_id, :command_id, :submission_id, :tx_id, :content_digest, :submitted_us, :act_as)
