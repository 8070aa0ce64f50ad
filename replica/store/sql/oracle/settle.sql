-- Another submission of the same command stays in flight.
DELETE FROM command_in_flight WHERE change_id = :change_id AND submission_id = :submission_id
