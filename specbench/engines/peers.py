"""What the engine `transformers` has beside each of our drafting methods; torch-free, for plans."""

from collections.abc import Mapping

from specbench.records import ASSISTED_DEFAULT
from specbench.records.keys import GENERATE

# Its own methods without drafts, at K = 0; the first is the baseline of the others.
STATIC = "generate_static"
BASELINES = (GENERATE, STATIC)

# Tokens a round that `assisted_default` drafts at most, unless the draft's checkpoint names
# another number; the engine's record tells what it was.
ASSISTED_DEFAULT_K = 20

# Our drafting methods that it also has, and what it calls them.
ASSISTED, LOOKUP = "assisted", "prompt_lookup"
COUNTERPARTS: Mapping[str, tuple[str, ...]] = {
    "draft_model": (ASSISTED, ASSISTED_DEFAULT),
    "ngram": (LOOKUP,),
}
