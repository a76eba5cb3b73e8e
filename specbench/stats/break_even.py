"""The acceptance at which speculation pays for itself."""

from specbench.stats.acceptance import expected_tokens_iid


def break_even_acceptance(k: int, round_steps: float) -> float | None:
    """The acceptance of every draft at which a round of K emits what it costs, in baseline steps.

    (1 - a^(K+1)) / (1 - a) = B, solved for a to 2e-12. 0: a round costs no more than a step; None:
    not even 1 is enough. Source: Leviathan et al. 2023 (arXiv:2211.17192), equation 1, with
    verification and overhead not free.
    """
    if round_steps > k + 1:
        return None
    if round_steps <= 1:
        return 0.0
    # By halves: scipy.optimize takes longer to import than most commands run.
    low, high = 0.0, 1.0
    while high - low > 2e-12:
        middle = (low + high) / 2
        if expected_tokens_iid(middle, k) < round_steps:
            low = middle
        else:
            high = middle
    return high
