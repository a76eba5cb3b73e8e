"""What comes next, cheaply? Drafting methods, one file each, marked with `@drafter("name")`.

In goes what a round knows, out come drafts; the protocol is decode/drafter.py. `shared/` is what
they are built of; `heads/` has the models of those with a head. Open
`ngram.py` first, the smallest.
"""
