"""Two sets of outputs compared: false alarms are as rare as stated, faults are found."""

import numpy as np
import pytest

from specbench.verify.statistics import Tally
from specbench.verify.two_samples import (
    ServedText,
    between,
    first_divergence,
    two_sample_p_value,
)


class Source:
    """Draws answers whose tokens depend on the previous one; a share of them from another law."""

    def __init__(
        self, num_tokens: int, spread: float, num_prompts: int = 3, length: int = 5
    ) -> None:
        rng = np.random.default_rng(0)
        shape = (num_prompts, length, 2)  # by prompt, position and whether the last id was even
        self.law = rng.dirichlet(np.full(num_tokens, spread), size=shape)

    def draw(self, num: int, seed: int, *, wrong: float = 0.0, heat: float = 1.0):
        rng = np.random.default_rng(seed)
        law = self.law ** (1 / heat)
        cumulated = (law / law.sum(-1, keepdims=True)).cumsum(-1)
        answers = []
        for i in range(num):
            tokens: list[int] = []
            for at in range(self.law.shape[1]):
                row = cumulated[i % len(self.law), at, sum(tokens[-1:]) % 2]
                token = int(np.searchsorted(row, rng.random() * row[-1]))
                if at and rng.random() < wrong:
                    token = int(rng.integers(len(row)))
                tokens.append(token)
                if token == 3:  # which ends a text
                    break
            answers.append((f"p{i % len(self.law)}", tuple(tokens)))
        return answers


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize(
    "source",
    [Source(2, 5.0, num_prompts=1, length=1), Source(8, 1.0), Source(200, 0.05)],
    ids=["one coin", "few", "many"],
)
def test_the_two_sample_test_has_the_stated_false_alarm_rate(source):
    """A seeded simulation: 600 pairs of sound sets; at a share of 0.05 up to 0.085 are within
    four standard deviations."""
    p_values = []
    for trial in range(600):
        answers = source.draw(90, seed=trial)
        order = np.random.default_rng(trial).permutation(len(answers))
        sides = [[answers[i] for i in side] for side in (order[:45], order[45:])]
        p_values.append(two_sample_p_value(*sides))
    p = np.array(p_values)
    for share in (0.05, 0.01, 0.002):
        most = share + 4 * (share * (1 - share) / len(p)) ** 0.5
        assert (p < share).mean() <= most, share


@pytest.mark.parametrize("fault", [{"wrong": 0.3}, {"heat": 0.7}], ids=str)
@pytest.mark.parametrize("source", [Source(8, 0.5), Source(200, 0.05)], ids=["few", "many"])
def test_the_two_sample_test_detects_only_planted_faults(fault, source):
    baseline, sound = source.draw(1500, seed=1), source.draw(1500, seed=2)
    broken = source.draw(1500, seed=3, **fault)
    assert two_sample_p_value(broken, baseline) < 1e-15
    assert two_sample_p_value(sound, baseline) > 0.01


def test_a_changed_dependence_between_tokens_is_detected():
    """Every token occurs as often as it should, at every position."""
    rng = np.random.default_rng(0)
    first = rng.integers(2, size=(2, 400))
    follows = [("p", (int(a), int(a))) for a in first[0]]
    differs = [("p", (int(a), 1 - int(a))) for a in first[1]]
    assert two_sample_p_value(follows, differs) < 1e-6


def test_single_or_equal_outputs_give_a_p_value_of_1():
    nine = [("p", (1, 2))] * 9
    assert two_sample_p_value([], []) == 1.0
    assert two_sample_p_value(nine, nine) == 1.0
    assert two_sample_p_value(nine, [("q", (5, 6))] * 9) == 1.0  # no prompt in common


def test_the_floor_is_the_mean_distance_of_exact_draws():
    rng = np.random.default_rng(0)
    law = rng.dirichlet(np.full(60, 0.2))
    apart, floors, pairs, pair_floors = [], [], [], []
    for _ in range(200):
        tally, sides = Tally(), []
        drawn = rng.choice(60, size=(2, 80), p=law)
        for token in drawn[0]:
            tally.add("p", 1, law[None], np.array([token]))
        (distance,) = tally.distances()
        apart.append(distance.total_variation)
        floors.append(distance.floor)
        sides = [[("p", (int(token),)) for token in side] for side in drawn]
        two = between(*sides)[0]
        pairs.append(two.total_variation)
        pair_floors.append(two.floor)
    assert distance.position == 1
    assert np.mean(apart) == pytest.approx(np.mean(floors), rel=0.03)
    assert np.mean(pairs) == pytest.approx(np.mean(pair_floors), rel=0.15)


def test_the_distance_is_reported_per_position():
    law = np.array([[0.5, 0.5, 0.0]])
    tally = Tally()
    for token in (0, 1) * 50:
        tally.add("p", 0, law, np.array([token]))
        tally.add("p", 1, law, np.array([2]))
    right, wrong = tally.distances()
    assert (right.total_variation, wrong.total_variation) == (0.0, 1.0)
    assert wrong.floor == pytest.approx((2 / np.pi * 25) ** 0.5 / 100, rel=0.05)


def served(text: str, ids: tuple[int, ...] = ()) -> ServedText:
    return ServedText(prompt="p", ids=ids, text=text, num_prompt_tokens=None, is_ended=True)


@pytest.mark.parametrize("ids", [(), (5, 6)])
def test_texts_are_compared_by_character_if_one_has_no_token_ids(ids):
    expected = served("The cat sat.", ids)
    assert first_divergence(expected, served("The cat sat.")) is None
    longer = first_divergence(expected, served("The cat sat. So"))
    assert (longer.position, longer.expected, longer.found) == (12, None, " So")
    other = first_divergence(expected, served("The dog sat."))
    assert (other.position, other.expected, other.found) == (4, "cat sat.", "dog sat.")
