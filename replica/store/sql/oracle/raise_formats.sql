-- From the next activation on; neither is ever lowered, whoever comes second.
UPDATE participant
   SET record_format = CASE WHEN record_format < :records THEN :records ELSE record_format END,
       rules_version = CASE WHEN rules_version < :rules THEN :rules ELSE rules_version END
