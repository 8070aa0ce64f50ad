-- One line for each number, without a gap: of two writers at once, one finds the number taken and comes again.
INSERT INTO operator_trail (number_, line)
SELECT :number_, :line FROM dual WHERE :number_ = (SELECT COALESCE(MAX(number_), 0) + 1 FROM operator_trail)
