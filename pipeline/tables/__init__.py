"""The log as tables in the users' lake: appended to as it grows, each record once.

Records are read in order and judged by the replicas' own rules, on an index of this job's own. Spark reads the tables;
it does not write them. docs/decisions/0017 has the reasons.
"""
