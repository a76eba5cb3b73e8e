"""The trees that the authors of Medusa and EAGLE-1 publish.

A word is a path, a digit a rank: "20" is the best child of the third best draft. Medusa's
likeliest paths come first, so every prefix of its lists is a tree. Facts from
FasterDecoding/Medusa medusa/model/medusa_choices.py, and the `mc_sim_7b_63` of SafeAILab/EAGLE
eagle/model/choices.py.
"""

from specbench.drafting.topology import Topology

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

EAGLE_STATIC = Topology.of_paths(
    _paths(
        """
    0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100
    0000 0001 0002 00000 00001
    """
    )
)
