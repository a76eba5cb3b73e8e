"""In: reasons, verdicts and numbers. Out: the words that a reader sees.

Every sentence of an answer is a line of the table in `records/reasons.py`.
"""
