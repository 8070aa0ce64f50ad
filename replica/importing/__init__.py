"""Imports the decisions of another notary: its consumed states become ordinary records of the request log.

docs/decisions/ has the reasons. `sources` reads a file or a table, `staging` collects it in a work file that also keeps
the progress, `submit` sends it through the API, like any client.
"""
