"""The environment of a replica: clock, database and lock server, request log, disk. Weather decides how they fail.

Built on the product's own in-memory doubles. A statement or a record in flight does not depend on its sender: it
arrives even if the sending process was stopped or killed meanwhile.
"""
