"""The trees that Medusa's authors publish, their likeliest paths first.

A word is a path, a digit a rank: "20" is the best child of the third best draft. Every prefix of
a list is a tree, too. Facts from FasterDecoding/Medusa, medusa/model/medusa_choices.py.
"""

Path = tuple[int, ...]


def _paths(words: str) -> tuple[Path, ...]:
    return tuple(tuple(map(int, word)) for word in words.split())


# For heads that were trained beside a frozen target; Medusa's default.
MC_SIM_7B_63 = _paths(
    """
    0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12
    003 40 21 004 005 0000 011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15
    101 021 90 060 0001 16 070
    """
)

# For heads that were trained together with their target, measured on Vicuna 7B.
VICUNA_7B_STAGE2 = _paths(
    """
    0 00 1 01 000 10 2 02 001 03 3 010 20 4 002 04 11 100 0000 5 003 05 020 30 011 06 6 07 004
    40 12 08 7 030 0001 005 21 006 101 0010 200 50 09 012 8 040 021 13 007 0002 008 110 0100 60
    9 013 0003 102 050 31 0020 70 14
    """
)
