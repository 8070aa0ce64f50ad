"""A replicated log after CCF's consensus: the decisions only. No I/O, no clock, no thread; randomness is injected.

Read in this order: messages.py (what travels), core.py (the entry: `tick`, `receive`, `replicate`, `nominate`, `take`),
then electing.py, leading.py and following.py, one for each thing that a node can be doing. docs/raft.md has the rules.
"""
