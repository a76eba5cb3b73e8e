"""What comes next, cheaply? Drafting methods, one file each, marked with `@drafter("name")`.

A round's state goes in and drafts come out; the protocol is decode/drafter.py. `shared/` has the
parts that several of them use. Open `ngram.py` first, the smallest.
"""
