SELECT line FROM operator_trail WHERE number_ = (SELECT MAX(number_) FROM operator_trail)
