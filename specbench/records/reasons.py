"""What an answer says, as data: a closed set of kinds, each with its sentence.

A sentence is a template: its fields are the figures of the kind, and `words/` prints them. Kinds
that explain an answer are in order of importance.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from specbench.doc import Doc
from specbench.stats.summaries import Interval


class Kind(StrEnum):
    """The kinds of reasons by their names in files and JSON."""

    sentence: str

    def __new__(cls, name: str, sentence: str) -> "Kind":
        kind = str.__new__(cls, name)
        kind._value_, kind.sentence = name, sentence
        return kind

    def __call__(self, **figures: "Figure") -> "Reason":
        """A reason of this kind; `figures` are the fields of its sentence."""
        return Reason(self, figures)

    # What was found about one drafter. The word of the verdict stands before it.
    FASTER = "faster", "{k:K}{mean_k:mean}, {speedup:x} faster{speedup:bounds}"
    MORE_REQUESTS = (
        "more_requests",
        "{k:K}{mean_k:mean}, {speedup:x} more requests within {limits}{speedup:bounds}",
    )
    # Of decoding and of whole requests, where they differ.
    ALSO_WHOLE = "also_whole", "whole requests {whole:x}{whole:bounds}"
    # Requests that are served together do not show how much other prompts would differ.
    THESE_PROMPTS = "these_prompts", "for these prompts"
    ONLY_DECODING = (
        "only_decoding",
        "whole requests {whole:x}{whole:bounds} at {k:K}{mean_k:mean}, although decoding is "
        "{speedup:x} faster{speedup:bounds}",
    )
    OPEN_WHOLE = (
        "open_whole",
        "whole requests {whole:range} at {k:K}{mean_k:mean}; decoding is {speedup:x} faster"
        "{speedup:bounds}",
    )
    STALLS_DECIDE = (
        "stalls_decide",
        "{speedup:x}{speedup:bounds} at {k:K}{mean_k:mean} with {kept:amount} that stalled, "
        "{without:x}{without:bounds} without",
    )
    MEASURED = "measured", "{k:K}{mean_k:mean} measured {speedup:x}{speedup:bounds}"
    MEASURED_REQUESTS = (
        "measured_requests",
        "{k:K}{mean_k:mean} measured {speedup:x} requests within {limits}{speedup:bounds}",
    )
    RANGE = "range", "{speedup:range} at {k:K}{mean_k:mean}"
    RANGE_REQUESTS = "range_requests", "{speedup:range} requests within {limits} at {k:K}"
    TOO_FEW = "too_few", "no interval at {k:K}{mean_k:mean} from {measured:amount}"
    NO_REQUESTS = (
        "no_requests",
        "no requests within {limits} at {k:K} and at K=0; raise the limits of --slo",
    )
    IMPORTED_ALONE = (
        "imported_alone",
        "{speedup:x} over K=0 at {k:K}, without an interval, which needs repeats at each K, or "
        "the times of {needed:amount} sent one at a time",
    )
    NOTHING_VALID = "nothing_valid", "no valid measurement"
    ALL_INVALID = "all_invalid", "no valid measurement ({k:K}: {because:all})"
    MORE_INVALID = "more_invalid", "{count} more excluded"
    NOT_CONFIRMED = (
        "not_confirmed",
        "{k:K}{mean_k:mean} led the exploration phase, but has no confirmation run",
    )
    CONFIRMATION_INVALID = "confirmation_invalid", "the confirmation run of {k:K} is not valid"
    ONLY_K = "only_k", "the only K with {needed:amount} or more"
    OTHER_K_OPEN = "other_k_open", "K={ks:ks} may be faster: measure again with only that K"

    # What was found about a setting with several drafters, or without one.
    NO_DRAFTER_HELPS = "no_drafter_helps", "no drafter is faster"
    NO_DRAFTER_SHOWN = "no_drafter_shown", "no drafter is shown to be faster"
    BASELINE_INVALID = "baseline_invalid", "no valid measurement of K=0"
    NOT_MEASURED = "not_measured", "not measured"
    NO_BASELINE = "no_baseline", "not compared: the imported file has no K=0; see the tables"
    ONLY_BASELINE = "only_baseline", "only K=0 was run{speed:speed}"
    ADD_K = "add_k", "add K, such as -k 0..8"

    # The answer to the question of a run.
    YES = "yes", "Yes: {which:all}"
    NOT_WITH = "not_with", "not {which:list}"
    NOT_ON = "not_on", "no speedup on {which:list}"
    OPEN_ON = "open_on", "undecided on {which:list}"
    UNMEASURED_ON = "unmeasured_on", "not measured: {which:list}"
    NO = "no", "No: no drafter is faster"
    NOTHING_SHOWN = "nothing_shown", "Undecided: no drafter is shown to be faster"
    NO_ANSWER = "no_answer", "No answer: no drafter was compared with K=0"

    # What to run for an objective.
    RECOMMENDED = "recommended", "{configuration}, {value:value}{tied:tied}"
    NO_DRAFTS_VALID = (
        "no_drafts_valid",
        "no valid measurement with drafts. K=0, {requests}: {value:value}",
    )
    DRAFTS_OPEN = "drafts_open", "{pairing}, {because:all}. K=0, {requests}: {value:value}"
    OVER_LIMITS = (
        "over_limits",
        "no configuration meets the limits. Closest: {configuration}: {because:all}",
    )
    OVER_LIMIT = "over_limit", "{limit} {seconds:ms}, above {most:ms}"
    LIMIT_UNKNOWN = "limit_unknown", "{limit} is not known"
    NO_VALID_BASELINE = "no_valid_baseline", "no answer: no valid measurement of K=0"
    UNANSWERED = "unanswered", "no answer: not measured"
    NOT_BEYOND = "not_beyond", "not measured beyond {requests:requests}: see --concurrency"
    FASTER_VARIANT = (
        "faster_variant",
        "{cell}: {variant} is {speedup:x} faster than {other}{speedup:bounds}",
    )
    OPEN_VARIANTS = (
        "open_variants",
        "{cell}: undecided: {variant} against {other} is {speedup:range}",
    )
    # An adaptive K or a serving engine's own scheme, at each number of concurrent requests.
    ADAPTIVE = "adaptive", "{cell}: {scheme} is {because:commas}{bound:also}{rule:lossy}"
    ADAPTIVE_DIFFERS = (
        "adaptive_differs",
        "{speed:faster} than {k:K}{concurrency:at}",
    )
    ADAPTIVE_OPEN = (
        "adaptive_open",
        "undecided against {k:K}{concurrency:at}{speed:slower_or_faster}",
    )
    FAVORS_FIXED = (
        "favors_fixed",
        "the best fixed K is chosen by the same figures, which favors it",
    )
    RUNNER_UP = "runner_up", "runner-up: {configuration}, {speedup:x}{speedup:bounds}"
    OPEN_RUNNER_UP = "open_runner_up", "runner-up: {configuration}, {speedup:range}"
    BEST_OPEN = "best_open", "best undecided: {configuration}, {speedup:range}"
    SOURCE_INVALID = "source_invalid", "{pairing}: {because:all}"
    PLANNED_ONLY = "planned_only", "planned but not measured: {cells:all}"
    USERS_UP_TO = (
        "users_up_to",
        "{configuration}: speedup up to {users:amount}; {verdict} at {stop}",
    )
    MEMORY_LEFT = (
        "memory_left",
        "memory left: {tokens:,} more tokens of context per request{context:than}",
    )
    MEMORY_FULL = "memory_full", "memory left: not enough for {context:,} tokens of context"

    # What a forecast chose.
    APPROXIMATE = "approximate", "approximate here"
    STEP_TIMES_OF = "step_times_of", "with the step times of {origin}"
    STEP_TIMES_OF_GREEDY = (
        "step_times_of_greedy",
        "with the step times of {origin}, which drafts greedily",
    )
    ADAPTIVE_BOUND = (
        "adaptive_bound",
        "no choice among K={ks:ks} gains more than {hindsight:gain} over {k:K} here",
    )
    ADAPTIVE_BY_ROUNDS = (
        "adaptive_by_rounds",
        "no choice among K={ks:ks} gains more than {hindsight:gain} over {k:K} here ({least:gain} "
        "if all untested draft tokens are wrong)",
    )
    ADAPTIVE_PAST = (
        "adaptive_past",
        "the best policy found that knows only the past {past:reaches}",
    )
    KEEP_K = "keep_k", "keep {k:K}"
    ADAPTIVE_UNKNOWN = (
        "adaptive_unknown",
        "what an adaptive K could gain is unknown: {because:all}",
    )
    DRAFTS_BY_ROUNDS = (
        "drafts_by_rounds",
        "what this method drafts depends on earlier rounds or other requests; add auto to -k to "
        "measure it",
    )
    NO_TRACES = "no_traces", "it needs traces of the draft tokens; measure with --forecast"
    ROUNDS_DO_NOT_SHOW = (
        "rounds_do_not_show",
        "the rounds show it only for a draft model's chains of K tokens at temperature 0, one "
        "request at a time; add --forecast",
    )
    AUTO_REACHES = "auto_reaches", "-k auto reaches {share:.0%} of that gain"
    FORECAST_LOWER = "forecast_lower", "skipped: the forecast of another drafter is higher"
    CHOSE_TO_MEASURE = "chose_to_measure", "of K={ks:ks} chose to measure {chosen:ks}"
    MEASURED_CHOSEN = "measured_chosen", "of K={ks:ks} measured {chosen:ks}"
    WOULD_MEASURE = "would_measure", "of K={ks:ks} would measure {chosen:ks}"
    TIME_SAVED = "time_saved", "{share:.0%} of the sweep's time saved by its own estimate"
    TIME_LOST = "time_lost", "{share:.0%} more time than the sweep by its own estimate"

    # Which drafter of a target to use.
    USE = "use", "use {drafter} ({method}) with {k:K}, {speedup:x} faster{speedup:bounds}"
    AT_SETTING = (
        "at_setting",
        "on {setting}, and {speedup:.2f}x over all {settings} settings, each at its K",
    )
    RIVAL = "rival", "{drafter} may be as fast, {speedup:x}{speedup:bounds}"
    FORECAST_RIVAL = (
        "forecast_rival",
        "{drafter} may be as fast by its forecast, {speedup:x}{speedup:bounds}",
    )
    OPEN_DRAFTER = "open_drafter", "{speedup:range} with {drafter} at {k:K}"
    OPEN_AT = "open_at", "on {setting}"
    STANDS_BEST = "stands_best", "it looks best"
    STANDS_NEAREST = "stands_nearest", "it comes nearest to a speedup"

    # What one K or one configuration for all workloads loses.
    ONE_K = (
        "one_k",
        "one K for all workloads: {k:K}; loses {losses:and}{left_out:not_compared}"
        "{open_on:open_on}",
    )
    ONE_CONFIGURATION = (
        "one_configuration",
        "one configuration for all workloads{setting}: {configuration}; loses "
        "{losses:and}{left_out:not_compared}{open_on:open_on}",
    )
    LOSS = "loss", "{share:.1%} on {workload}"
    LOSS_UNMEASURABLE = (
        "loss_unmeasurable",
        "nothing measurable on {workload} (best there: {best})",
    )
    LOSS_BETWEEN = "loss_between", "{low:.1%} to {high:.1%} on {workload}"
    LOSS_AT_MOST = "loss_at_most", "at most {high:.1%} on {workload} (best there: {best})"
    LOSS_UNKNOWN = (
        "loss_unknown",
        "an unknown share on {workload} (up to {high:.0%}; best there: {best})",
    )
    NO_LOSS = "no_loss", "nothing"

    # K by the length of the context.
    AT_ALL_LENGTHS = "at_all_lengths", "{k:choice} from {shortest:,} to {longest:,} tokens"
    UP_TO_LENGTH = "up_to_length", "{k:choice} up to {longest:,} tokens"
    BETWEEN_LENGTHS = "between_lengths", "{k:choice} from {shortest:,} to {longest:,}"
    AT_LENGTH = "at_length", "{k:choice} at {context:,}"
    FROM_LENGTH = "from_length", "{k:choice} from {shortest:,}"
    NO_BREAK_EVEN = "no_break_even", "break-even with {k:K}: none up to {longest:,} tokens"
    BREAK_EVEN_OPEN = "break_even_open", "break-even with {k:K}: undecided"
    BREAK_EVEN_ABOUT = "break_even_about", "break-even with {k:K}: undecided, about {tokens:tokens}"
    BREAK_EVEN = "break_even", "break-even with {k:K}: {tokens:tokens}"

    # What would decide it.
    LONGER_BUDGET = "longer_budget", "use a longer --time-budget"
    NEEDS_MORE = "needs_more", "needs {missing:amount} more for an interval{num_prompts:set}"
    NOT_ENOUGH_LEFT = "not_enough_left", "the workload has {left} more: add some"
    TOO_NOISY = (
        "too_noisy",
        "the noise could hide even a {effect:hidden} speedup: raise {option}, or use a quieter "
        "machine",
    )
    MORE_OF = "more_of", "to narrow it: raise {option}"
    MACHINE_VARIES = (
        "machine_varies",
        "to narrow it: another run, or a quieter machine; its states alone make a margin of "
        "{machine:.0%}, prompts {prompts:.0%}",
    )
    ADD_PROMPTS = (
        "add_prompts",
        "to narrow it: add prompts to the workload, or use a quieter machine",
    )
    ALL_PROMPTS = (
        "all_prompts",
        "to narrow it: --num-prompts {prompts} for all of the workload{width:about}",
    )
    BUDGET_FOR_ALL = (
        "budget_for_all",
        "to narrow it: a longer --time-budget for all of the workload{width:about}",
    )

    # Why, the most important first.
    NEVER_PAYS = (
        "never_pays",
        "round cost: {break_even:.2f} steps; {k:K} loses even if every draft is accepted",
    )
    MISMATCHED = (
        "mismatched",
        "mismatched drafter: only {first:.0%} of its first tokens are accepted",
    )
    TARGET_TOO_SMALL = (
        "target_too_small",
        "the target is too small for a separate draft model of this size: a draft token costs "
        "{draft:.2f} of its steps. A smaller draft model, a head or n-grams cost less",
    )
    ATTAINMENT = (
        "attainment",
        "requests within {limits}: {kept:.0%} at {k:K}, {baseline:.0%} at K=0",
    )
    DRAFT_BOUND = (
        "draft_bound",
        "draft-bound: the largest loss is the time of drafting; a cheaper drafter would help",
    )
    VERIFY_BOUND = (
        "verify_bound",
        "verify-bound: the largest loss is that a verification is longer than a target step",
    )
    ACCEPTANCE_BOUND = (
        "acceptance_bound",
        "acceptance-bound: the largest loss is from draft tokens rejected or not found",
    )
    OVERHEAD_BOUND = "overhead_bound", "overhead-bound: the largest loss is between forwards"
    ACCEPTANCE_LENGTH = (
        "acceptance_length",
        "acceptance length at {k:K}{mean_k:mean}: {length:.2f} tokens per round (break-even: "
        "{break_even:.2f})",
    )
    STEP_COSTS = (
        "step_costs",
        "time in target steps: {draft:.2f} per draft token, {verify:.2f} per verification",
    )
    ACCEPTANCE_PER_TOKEN = (
        "acceptance_per_token",
        "acceptance per tested draft token: {alpha:.0%} (break-even: {needed:.0%})",
    )
    RECURRENT_STATES = (
        "recurrent_states",
        "recurrent layers: {states:MiB} of states per sequence are kept to roll back rejected "
        "draft tokens",
    )
    CONFIRMED = "confirmed", "confirmation run: {speedup:x}{speedup:bounds} over {over:amount}"
    CONFIRMATION_EXCLUDED = "confirmation_excluded", "confirmation run excluded: {because:all}"
    OTHER_PROMPTS = "other_prompts", "these prompts did not choose K"
    CROSS_FITTED = (
        "cross_fitted",
        "other prompts are too few: each half is judged at the K that the other half chose",
    )
    LED = (
        "led",
        "exploration phase: {k:K}{mean_k:mean} had the highest estimate of K={tried:ks}, within 1%",
    )
    DROPPED = "dropped", "not compared, without an interval: K={ks:ks}"
    LOOKS_BEST = "looks_best", "undecided: {k:K}{mean_k:mean} looks best so far"
    OTHERS_LOSE = "others_lose", "no speedup: K={ks:ks}"
    HIGHEST_ESTIMATE = (
        "highest_estimate",
        "{k:K}{mean_k:mean} has the highest estimate of K={tried:ks}, within 1%; none is shown to "
        "be faster",
    )
    DRAFTER_MEMORY = "drafter_memory", "drafter memory: {bytes:MiB}{cache_tokens:cache}"
    DETECTABLE_EFFECT = "detectable_effect", "minimum detectable effect: {effect:effect}"
    MARGIN = (
        "margin",
        "margin {total:.0%}: prompts {prompts:.0%}, machine {machine:.0%} ({basis:basis})",
    )
    ONE_PROMPT = (
        "one_prompt",
        "one prompt has {share:.0%} of the variance between prompts: with others like it the "
        "speedup may differ by more",
    )
    STALLED = (
        "stalled",
        "the machine held up {count:amount} ({baseline} at K=0); with them {speedup:x}"
        "{speedup:bounds}",
    )
    EXCLUDED = "excluded", "excluded: K={ks:ks}: {because:all}"

    # What verify found about one pairing at one K and temperature.
    LOSSY_RULE = "lossy_rule", "{rule} is lossy by choice"
    COULD_NOT_RUN = "could_not_run", "{error}"
    EVERY_TOKEN = "every_token", "every token is the expected one"
    TIES = (
        "ties",
        "rounding explains the difference at {tokens:token}: at most "
        "{steps:rounding}{below:logits} below the target's best",
    )
    RUNS_PAST = "runs_past", "{prompt}, {unit} {position}: the text runs past its end"
    STOPS_EARLY = "stops_early", "{prompt}, {unit} {position}: the text stops early"
    DIVERGES = (
        "diverges",
        "{prompt}, {unit} {position}: {found!r} instead of {expected!r}{how_far:distance}",
    )
    NOT_SCORED = "not_scored", "not scored, because {because}"
    DEPARTS_ALONE = (
        "departs_alone",
        "without speculation it departs from the target's best tokens beyond rounding",
    )
    NOT_COMPARED = "not_compared", "not compared with the target: {because}"
    NOT_TESTED = "not_tested", "not tested against the target's distribution: {because}"
    WRONG_ENDS = (
        "wrong_ends",
        "{count:text} with a wrong end, too late or too early; first for {prompt}",
    )
    OUTSIDE = "outside", "top-k and top-p exclude {count:token}"
    OTHER_TEMPERATURE = (
        "other_temperature",
        "the tokens do not follow the target's distribution: another temperature fits them better",
    )
    OTHER_FREQUENCIES = (
        "other_frequencies",
        "the tokens do not follow the target's distribution: likely and unlikely tokens do not "
        "occur as often as they should",
    )
    TOO_OFTEN = (
        "too_often",
        "the tokens do not follow the target's distribution: some tokens occur too often",
    )
    DEPENDENT = (
        "dependent",
        "the tokens do not follow the target's distribution: a token depends on the previous one "
        "in a way the target's does not",
    )
    OTHER_TEXTS = (
        "other_texts",
        "the tokens do not follow the target's distribution: whole texts do not occur as often as "
        "they should",
    )
    FREQUENCY_DIFFERS = (
        "frequency_differs",
        "some tokens do not occur as often as in its answers at K=0",
    )
    NOT_SPECULATION = (
        "not_speculation",
        "speculation is not the cause: the server's model, dtype or quantization differs from the "
        "target's here, or it samples with other settings (top-k, penalties, "
        "generation_config.json)",
    )
    AT_EDGE = (
        "at_edge",
        "{at_edge} of {tokens} tokens are at the cutoff of top-k or top-p, which rounding decides; "
        "verify with --dtype float32, or without them",
    )
    TOO_FEW_TOKENS = (
        "too_few_tokens",
        "{tokens:,} tokens are too few to detect a 20% lower temperature reliably: raise "
        "--time-budget, or set --num-tokens {needed}",
    )
    TOO_SURE = (
        "too_sure",
        "the target is too sure of its tokens for any number of them to show a 20% lower "
        "temperature; raise --temperature",
    )
    CONTROL_FAILED = (
        "control_failed",
        "answers of K=0 at a 20% lower temperature are not distinguished either; raise "
        "--num-tokens",
    )
    FOLLOWS = "follows", "the tokens follow the target's distribution"
    LIKE_BASELINE = "like_baseline", "its answers are like those of its K=0"

    # What verify found about one pairing in all its settings.
    IN_SETTING = "in_setting", "{setting}: {because:all}{p_value:p}"
    GREEDY_EQUALS = (
        "greedy_equals",
        "greedy text equals that of K=0 in {matching} of {answers} answers",
    )
    GREEDY_IS_BEST = (
        "greedy_is_best",
        "greedy text equals the target's best tokens in {matching} of {answers} answers",
    )
    OTHERS_TIE = "others_tie", "the others differ at ties"
    SAMPLED_FOLLOW = (
        "sampled_follow",
        "{tokens:,} sampled tokens follow the target's distribution{p_value:p}: 80% power to "
        "detect {shift:.1%} of tokens shifted, or {tail:.2%} moved to the least likely 0.1%",
    )
    COMPARED_WITH_IT = (
        "compared_with_it",
        "its greedy text is what the others are compared with",
    )
    SAMPLED_LIKE_BASELINE = (
        "sampled_like_baseline",
        "{tokens:,} sampled tokens are like those of K=0{p_value:p}",
    )
    BASELINE_DEPARTS = (
        "baseline_departs",
        "K=0 does not follow the target's distribution, with or without speculation",
    )
    BASELINE_OPEN = "baseline_open", "K=0 is undecided"
    BASELINE_FOLLOWS = (
        "baseline_follows",
        "K=0 of the same server follows the target's distribution{p_value:p}",
    )
    FARTHEST = (
        "farthest",
        "farthest at position {position}: total variation {distance:.3f}, and {floor:.3f} by "
        "chance",
    )
    SHOULD_KEEP = (
        "should_keep",
        "the rule by which it should accept drafts keeps the distribution: {rule}",
    )
    ROUNDING = "rounding", "a near-tie"
    NOT_ROUNDING = "not_rounding", "rounding does not explain it"

    # What the traffic of a server shows.
    COLLAPSED = (
        "collapsed",
        "acceptance collapsed at {at}: {before:.2f} -> {after:.2f} tokens per round"
        "{counts:accepted_of}",
    )
    ACCEPTANCE_MOVED = (
        "acceptance_moved",
        "acceptance changed at {at}: {before:.2f} -> {after:.2f} tokens per round, as with other "
        "traffic",
    )
    NONE_ACCEPTED = (
        "none_accepted",
        "none of the first {drafted:,.0f} draft tokens was accepted: probably a fault, such as a "
        "draft model for another target",
    )
    ALL_ACCEPTED = (
        "all_accepted",
        "all of the first {drafted:,.0f} draft tokens were accepted, at every position: probably a "
        "fault of the counters, or one text again and again",
    )
    NOTHING_READ = "nothing_read", "the counters could not be read again"
    NO_DRAFTS = "no_drafts", "no drafts in {tokens:,.0f} tokens"
    ROUNDS_NOT_COUNTED = (
        "rounds_not_counted",
        "{accepted:,.0f} of {drafted:,.0f} draft tokens were accepted; the length is unknown, "
        "since this server does not count rounds",
    )
    LENGTH_NOT_KNOWN = (
        "length_not_known",
        "the length is unknown: {rounds:,.0f} rounds are counted, and {tokens:,.0f} tokens after "
        "the first of {requests:,.0f} requests, as if some requests were aborted",
    )
    NO_TRAFFIC = "no_traffic", "no tokens in {seconds:.0f} s"
    LENGTH_WATCHED = (
        "length_watched",
        "{length:lengths} tokens per round{length:bounds}{rates:rates}",
    )
    SMALLER_K = (
        "smaller_k",
        "{k:K} would emit about {tokens:.2f} tokens per round instead of {now:.2f}{fewer:less}, if "
        "it drafts the same first tokens",
    )
    K_FORECAST = (
        "k_forecast",
        "forecast: {k:K}, {speed:x} the speed of {now_k:K}{speed:bounds}, with {costs}",
    )
    NO_SMALLER_K = (
        "no_smaller_k",
        "forecast: of K={ks:ks}, none is estimated to be faster than {k:K}, with {costs}",
    )
    NEEDS_STEP_TIMES = (
        "needs_step_times",
        "no K can be named without the seconds of a round: add --step-times with a run of this "
        "server at K=0 to {k:K}, or a table",
    )

    # Signs that a machine was busy. Fewer threads are advised once.
    OTHER_PROCESSES = (
        "other_processes",
        "other processes use {used:.1f} of {cores:amount}{busiest:in_brackets}",
    )
    THREADS_WAIT = (
        "threads_wait",
        "{threads} threads wait for the slowest one; use --threads {fewer}",
    )
    GUESTS = "guests", "other guests of this host take {share:.0%} of the CPU time"
    LOAD = "load", "load average {load:.1f} on {cores:amount}"
    CLOCKS_LIMITED = "clocks_limited", "CPU clocks are limited to {limit:.1f} of {most:.1f} GHz"
    UNEVEN_ROUNDS = (
        "uneven_rounds",
        "a round of K=0 took {mean_s:ms} on average and {median_s:ms} at the median",
    )
    DRIFTED = "drifted", "K=0 drifted by a factor of {factor:.2f} between blocks of one prompt"
    WAITED = "waited", "this process got the CPU for {share:.0%} of the time"
    WAITED_MORE = (
        "waited_more",
        "this process got the CPU for {share:.0%} of the time, and for {before:.0%} in the "
        "baseline",
    )

    # Why a cell may not support a decision.
    OF_BASELINE = "of_baseline", "baseline: {because:all}"
    REQUESTS_FAILED = "requests_failed", "{failed} of {requests} requests failed{error:colon}"
    NOTHING_FINISHED = "nothing_finished", "no request finished"
    TOO_FEW_ROUNDS = "too_few_rounds", "fewer than {needed} rounds"
    BURSTS = (
        "bursts",
        "no decode speed: a proxy buffers this stream: {counted:,} tokens came at {seen:,} "
        "moments, more than K={k} can give; turn its buffering off (header X-Accel-Buffering: "
        "no), or measure behind it ({answers} of {judged} answers)",
    )
    UNSTREAMED = (
        "unstreamed",
        "no decode speed: hidden thinking: {counted:,} tokens in `usage`, {seen:,} of them "
        "streamed; let the server stream its reasoning, or turn thinking off ({answers} of "
        "{judged} answers)",
    )
    LATE_FIRST = (
        "late_first",
        "no decode speed: tokens before the stream: {counted:,} tokens in `usage`, at most "
        "{seen:,} in the events, and the first one as late as the others explain; let the server "
        "stream its reasoning, or turn thinking off ({answers} of {judged} answers)",
    )
    MISCOUNTED = (
        "miscounted",
        "no decode speed: `usage` counts other tokens than the stream has: {counted:,} completion "
        "tokens, {seen:,} by its total or by the events; measure the engine itself, without the "
        "gateway that counts ({answers} of {judged} answers)",
    )
    CLIENT_BUSY = (
        "client_busy",
        "client-bound: the client used {share:.0%} of a core, more than {most:.0%}; lower "
        "--concurrency, or run the client on a faster machine",
    )
    CLIENT_LAGGED = (
        "client_lagged",
        "client-bound: the client's event loop lagged by {lag:ms} on average, more than "
        "{most:.0%} of a round's {interval:ms}; keep a core free for it",
    )
    NEVER_DRAFTED = (
        "never_drafted",
        "never drafted at {k:K}: the server counted no draft token in {requests} requests of "
        "{tokens:,} tokens; its log says why (of a server that was started: servers/ in the run's "
        "folder)",
    )
    SERVERS_UNLIKE = (
        "servers_unlike",
        "the servers at K=0 and at this K differ in more than K: {facts:all}; start both with "
        "the same dtype, KV cache and parallelism",
    )
    CLIENT_PAUSED = (
        "client_paused",
        "client-bound: the client stood still in {share:.0%} of the measurement, more than "
        "{most:.0%}; keep a core free for it",
    )
    SERVER_THROTTLED = "server_throttled", "a GPU throttled: {reasons:commas}"
    THROTTLED = "throttled", "throttled in {throttled} of {requests} requests: {reasons:commas}"
    SLOW_CLOCK = (
        "slow_clock",
        "SM clock down to {lowest:.0%} of default, under {least:.0%} in {slow} of {requests} "
        "requests",
    )
    GPU_SHARED = "gpu_shared", "another process on the GPU in {shared} of {requests} requests"
    CLOCKS_DIFFER = (
        "clocks_differ",
        "at the power cap the SM clock was {clock:.0f} MHz, and {baseline:.0f} MHz at K=0: more "
        "than {most:.0%} apart; set one for both (nvidia-smi -lgc)",
    )
    # Identities that every correct decoder satisfies.
    ACCEPTED_TOO_MANY = (
        "accepted_too_many",
        "identity broken: num_accepted > num_drafted or num_accepted > K ({broken} of {requests} "
        "requests, first {prompt})",
    )
    EMITTED_OUTSIDE = (
        "emitted_outside",
        "identity broken: num_emitted outside num_accepted .. num_accepted + 1, or 0 ({broken} of "
        "{requests} requests, first {prompt})",
    )
    TOKENS_UNEXPLAINED = (
        "tokens_unexplained",
        "identity broken: output tokens are not 1 + predicted-output tokens + sum of num_emitted "
        "({broken} of {requests} requests, first {prompt})",
    )
    CHECK_IMPOSSIBLE = (
        "check_impossible",
        "identity broken: the check of a predicted output accepts more than it drafts or emits "
        "({broken} of {requests} requests, first {prompt})",
    )
    ROUND_OVER_K = (
        "round_over_k",
        "identity broken: a round exceeds the cell's K ({broken} of {passes} passes)",
    )
    LIVE_OVER_ROWS = (
        "live_over_rows",
        "identity broken: num_live > num_rows ({broken} of {passes} passes)",
    )
    TIME_LINE_DIFFERS = (
        "time_line_differs",
        "identity broken: tokens on the time line do not match its requests ({broken} of {passes} "
        "passes)",
    )
    TIMES_DIFFER = (
        "times_differ",
        "identity broken: rounds take {round_s:.3g} s, decoding {decode_s:.3g} s",
    )
    HISTOGRAM_DIFFERS = (
        "histogram_differs",
        "identity broken: histogram sums to {histogram:g}, not {rounds} rounds",
    )
    HISTOGRAM_NEGATIVE = (
        "histogram_negative",
        "identity broken: more rounds accept drafts than there are",
    )
    LENGTH_OUTSIDE = (
        "length_outside",
        "identity broken: {metric} {length:.2f} outside 1 .. K + 1",
    )
    RATE_OUTSIDE = "rate_outside", "identity broken: acceptance rate {rate:.2f} outside 0 .. 1"
    ACCEPTANCE_RISES = "acceptance_rises", "identity broken: acceptance per position rises"

    # What to look at again in a valid cell.
    WHOLE_REQUESTS = (
        "whole_requests",
        "whole requests, from sending to the last token, are {speedup:.2f}x as fast as at K=0: "
        "no decode speed, but right without the times within the streams",
    )
    SERVERS_DIFFER = (
        "servers_differ",
        "the servers at K=0 and at this K also differ in {facts:all}, so the speedup is not of K "
        "alone",
    )
    POWER_CAPPED = (
        "power_capped",
        "the GPU was at its power cap in {capped} of {requests} requests",
    )
    SERVER_POWER_CAPPED = "server_power_capped", "a GPU was at its power cap"
    SUSPICIOUS_ACCEPTANCE = (
        "suspicious_acceptance",
        "position 1 is accepted in {share:.1%} of rounds: prompts may be repetitive or random; "
        "expect less speedup on other text",
    )
    OUTPUTS_DIFFER = (
        "outputs_differ",
        "{differing} of {compared} outputs differ from K=0 at temperature 0; `specbench verify` "
        "distinguishes near-ties from faults",
    )
    OUTPUTS_MAY_DIFFER = (
        "outputs_may_differ",
        "{differing} of {compared} outputs differ from K=0 at temperature 0, as the rule {rule} "
        "allows",
    )
    NEAR_TIES = (
        "near_ties",
        "{differing} of {compared} outputs differ from K=0 at temperature 0: {dtype} rounds "
        "near-ties differently for other numbers of tokens{worst:in_brackets}; `specbench verify` "
        "distinguishes them from faults",
    )
    FIRST_DIFFERENCES = (
        "first_differences",
        "at the first difference of {outputs} outputs, the logits of the two tokens are at most "
        "{gap:.3g} apart, {steps:.3g} x the spacing of {dtype} there",
    )
    OUTPUT_LENGTHS_DIFFER = (
        "output_lengths_differ",
        "mean output is {tokens:.0f} tokens, {baseline:.0f} at K=0",
    )
    GRAPHS_DIFFER = (
        "graphs_differ",
        "graph {graph} against {baseline} at K=0 in {differing} of {requests} requests: part of "
        "the difference is how rounds are started",
    )
    FEW_SEEDS = (
        "few_seeds",
        "{needed} seeds per prompt needed at temperature {temperature:g}, some have {fewest}",
    )
    CYCLES_LEFT_OUT = (
        "cycles_left_out",
        "{left_out} of {cycles} cycles are left out: client-bound; keep a core free for the client",
    )
    SESSIONS_DIFFER = (
        "sessions_differ",
        "sessions decode at {slowest:.2f}x to {fastest:.2f}x their median speed, further apart "
        "than noise explains: other load, another server or another build? Intervals of speedups "
        "allow for it unless it slowed one K more often than another",
    )
    SATURATED = (
        "saturated",
        "saturated, or nearly: requests arrive faster ({request_rate:g} per second) than they are "
        "served. The first third waited {first_s:.3g} s for the first token, the last third at "
        "least {last_s:.3g} s, and more requests would wait longer",
    )

    # What to look at again in a run.
    OF_CELLS = "of_cells", "{cells:all}: {because:all}"
    NOISY = "noisy", "noisy machine, so intervals are wide: {signs:all}"
    SYNTHETIC = "synthetic", "{made:commas}: timings are real; text and acceptance are not"
    LOSSY = (
        "lossy",
        "{pairing} is lossy by choice (rule {rule}): it accepts drafts that the target would not "
        "have generated, so its text is not the target's",
    )
    NO_TEMPLATE = (
        "no_template",
        "{target} has no chat template: prompts are fed as they are",
    )
    RENDERED_TWICE = (
        "rendered_twice",
        "{workload}: {count:amount} with {token}, a special token of {target}: a text that a chat "
        "template has rendered is rendered again; give its messages",
    )
    THINKING_IGNORED = (
        "thinking_ignored",
        "{workloads:commas}: the chat template of {target} has neither {names:nor}, so the setting "
        "thinking has no effect",
    )
    FOREIGN_WORKLOAD = (
        "foreign_workload",
        "{workload}: {target} was not trained on such text; its figures mean little",
    )
    PEERS_LACK = (
        "peers_lack",
        "the engine transformers has no such method for {pairings:commas}: only builtin measures "
        "them",
    )
    NOTHING_MEASURES = (
        "nothing_measures",
        "the engine transformers has no such method for {pairings:commas}: add builtin",
    )
    K_TOO_DEEP = (
        "k_too_deep",
        "{pairing} cannot draft K={k} or more tokens ahead: these K were left out",
    )
    FOUND_IN_FILES = "found_in_files", "{name}: {finding}"
    NOTE = "note", "{text}"
    OTHER_MODEL = (
        "other_model",
        "{option} serves {served}, and the target {target} is {model}: check that they are the "
        "same model",
    )
    NO_VERSION = "no_version", "{option} does not report its version: check that it is {engine}"
    REPLICAS = (
        "replicas",
        "{servers} servers run at K={k}: they share the requests as replicas",
    )
    CLOCK_SET_BACK = (
        "clock_set_back",
        "the clock was set back: run {later} is dated later than now and stays `latest`; refer to "
        "this one as {run_id}",
    )
    INCOMPLETE = (
        "incomplete",
        "incomplete: interrupted or still running, so recommendations may change. To continue: "
        "{command}",
    )
    CELLS_MISSING = (
        "cells_missing",
        "not measured, so without a recommendation: {missing} of {cells} cells: {names:commas}",
    )
    BUDGET_ELSEWHERE = (
        "budget_elsewhere",
        "not measured: the time budget went to other K of this drafter",
    )
    BUDGET_ENDED = (
        "budget_ended",
        "no interval: the time budget ended after {measured} of the {needed:amount} it needs",
    )
    PROMPTS_DIFFER = (
        "prompts_differ",
        "{settings:list}: cells have {fewest} to {most} prompts. A speedup compares the same "
        "prompts at K and at K=0; tok/s and rates of rows with different prompts are not "
        "comparable",
    )
    RESUMED_ELSEWHERE = (
        "resumed_elsewhere",
        "resumed {created_at} under different conditions, which the results mix: {changes:all}",
    )
    ALSO_ON_NODE = (
        "also_on_node",
        "also measured on node {node} under different conditions, which the results mix: "
        "{changes:all}",
    )
    IMPORTED = (
        "imported",
        "imported from {tools:commas}: figures as reported by that tool; intervals are over "
        "{units:list}, with each server started once",
    )
    IMPORTED_POINTS = (
        "imported_points",
        "imported from {tools:commas}: figures as reported by that tool; no interval without "
        "repeats or the times of single requests, and no K is chosen",
    )
    THEIRS = (
        "theirs",
        "rows of {tools:commas}: measured by others on their machines; speedups, intervals and "
        "validity are theirs, and were not checked here",
    )

    # What to look at again in the sessions of a server.
    OF_SESSIONS = "of_sessions", "{engine}, {k:K}{more:more}: {because:all}"
    OTHERS_UNSEEN = (
        "others_unseen",
        "{engine} does not count the tokens of all clients: requests of other clients cannot be "
        "noticed, and would slow the measurement",
    )
    NOT_RESTARTED = (
        "not_restarted",
        "{engine} was running and was not restarted: the variation between its processes is not in "
        "the intervals",
    )
    RESTARTED = (
        "restarted",
        "{engine} was running and was restarted between sessions at K={ks:ks}: the variation "
        "between its processes is not in the intervals",
    )
    PREFIXES_KEPT = (
        "prefixes_kept",
        "{engine} kept prefixes of earlier prompts: those that repeat them start faster",
    )
    ACCEPTED_COUNTS_DIFFER = (
        "accepted_counts_differ",
        "accepted drafts: {requests:,} by the requests' counts, {server:,.0f} by the server's",
    )
    ROUND_COUNTS_DIFFER = (
        "round_counts_differ",
        "rounds with drafts: {requests:,} by the requests' counts, {server:,.0f} by the server's",
    )
    RATE_LIMITED = (
        "rate_limited",
        "the server limits the rate of requests (429): {delayed} of {requests} were sent again, "
        "{seconds:.0f} s later in total",
    )

    # What the counts of another tool mean.
    CONDITIONS = "conditions", "conditions in the file: {facts:all}"
    STATED_INVALID = "stated_invalid", "its row says that it is not valid{because:colon}"
    CANCELLED = "cancelled", "the run was cancelled"
    PAST_THE_END = (
        "past_the_end",
        "acceptance is as vLLM counts it, with drafts accepted past the end of an answer: at least "
        "what specbench measures for the same texts",
    )
    SINCE_START = (
        "since_start",
        "accept_length is the server's average since its start: true of this run only if the "
        "server was fresh",
    )
    RANDOM_PROMPTS = (
        "random_prompts",
        "random prompts: expect another acceptance rate, and speedup, on real text",
    )
    CHUNKS = (
        "chunks",
        "specdec_bench counts each chunk as one round, even the first token: lengths are too low",
    )
    ALL_ITERATIONS = (
        "all_iterations",
        "for trtllm-bench every decoding iteration is one round that drafted K tokens",
    )
    NO_ACCEPTANCE = (
        "no_acceptance",
        "no acceptance in the file: check that its server speculated; for aiperf import its "
        "server_metrics_export.json as well",
    )
    ACCEPTANCE_UNREPORTED = (
        "acceptance_unreported",
        "no acceptance in the file, although {place} has its server speculate: acceptance is "
        "unknown, and the log of the server may have it",
    )
    REPEATS = "repeats", "mean of {repeats:amount}{deviations:parts}"
    DEVIATION = "deviation", "standard deviation of {metric} {share:.1%}"

    # The answer of a check.
    NONE_WORSE = (
        "none_worse",
        "{comparisons:amount} of {cells:amount}, none worse than tolerated ({tolerated:commas})",
    )
    MIGHT_MISS = "might_miss", "a loss of {losses:and} might not be seen"
    LOSS_BELOW = "loss_below", "{metric} below {loss:.0%}"
    MOVED = "moved", "{name} {shift:shift}, {change:+.1%} ({limit:limit} is tolerated)"
    NUM_WORST = "num_worst", "{worst} of {comparisons:amount} of {cells:amount}"
    FIRST_CAUSE = "first_cause", "cause: {cause}"
    FIRST_POSSIBLE_CAUSE = "first_possible_cause", "possible cause: {cause}"

    # What a baseline cannot show.
    THREADS_VARY = (
        "threads_vary",
        "threads: {threads}: a check with this baseline compares no absolute times; give every run "
        "the same --threads",
    )
    ASSUMED = (
        "assumed",
        "one run does not show the variation between runs; assumed{deviations:parts}. Pool several "
        "runs to measure it",
    )
    ASSUMED_DEVIATION = "assumed_deviation", "{of:list} {share:.1%}"

    # What an exported command is based on.
    OF_RUN = "of_run", "run {run_id}"
    OF_INTERRUPTED_RUN = (
        "of_interrupted_run",
        "run {run_id}, interrupted: based on what it measured so far",
    )
    BY_HAND = "by_hand", "K was set by hand, not measured"
    DECIDED = "decided", "{requests:at_once}{workload}: {verdict:verdict}{because:all}{mark}"
    NO_FIXED_K = (
        "no_fixed_k",
        "engines take a fixed K, and no fixed K has a proven speedup",
    )
    BEST_FIXED_K = "best_fixed_k", "engines take a fixed K: the best fixed one is {k:K}"
    NO_SHARED_K = (
        "no_shared_k",
        "no K has an interval on all of these workloads: export one of them with --workload",
    )
    OPEN_CONCURRENCY = (
        "open_concurrency",
        "K=0 at concurrency {at:ks} because it is undecided there: measure it longer",
    )
    MEASURED_AT = (
        "measured_at",
        "temperature {temperature:g}{others:also_at}, {dtype}, {engine} engine",
    )
    VARIANT = "variant", "variant {variant}: {arguments}"
    PLAIN_VARIANT = "plain_variant", "variant {variant}: no more arguments"
    BY_CONTEXT = "by_context", "{workload}, by context: {because:all}"
    WITH_FLAGS = "with_flags", "measured with {engine} itself, started with these flags"
    WITHOUT_FLAGS = (
        "without_flags",
        "measured with {engine} itself, which was running: flags not known",
    )
    MORE_ARGUMENTS = "more_arguments", "its additional arguments: {arguments}"
    CPU_DTYPE = (
        "cpu_dtype",
        "measured in float32, a CPU's default, but served in the checkpoint's dtype: measure that "
        "with --dtype bfloat16",
    )

    # Why a check judged a metric as it did.
    MACHINE_BUSY = (
        "machine_busy",
        "the machine was busy during the {sides:list}, so times cannot be compared",
    )
    BASELINE_CELL_INVALID = "baseline_cell_invalid", "not valid in the baseline: {because:all}"
    CELL_INVALID = "cell_invalid", "not valid: {because:all}"
    PARTLY_MEASURED = "partly_measured", "{measured} of {planned} prompts were measured"
    TEXTS_DIFFER = (
        "texts_differ",
        "{differing} of {compared} texts differ, first {prompt} in {place}; `specbench verify` "
        "distinguishes near-ties from faults",
    )
    TEXTS_MAY_DIFFER = (
        "texts_may_differ",
        "{differing} of {compared} texts differ, first {prompt} in {place}; not a regression, "
        "because hardware, torch, dtype, engine or model differ",
    )
    MISSING_IN_CANDIDATE = "missing_in_candidate", "missing in the candidate"
    BASELINE_IS_ZERO = "baseline_is_zero", "the baseline is 0"
    PLAIN_GOT_FASTER = "plain_got_faster", "K=0 got faster; so did this cell, but by less"
    PLAIN_MAY_BE_FASTER = (
        "plain_may_be_faster",
        "this cell got faster; K=0 may have got faster by more, within noise",
    )
    BEYOND_LIMIT = (
        "beyond_limit",
        "undecided on this machine: lost more than tolerated, and identical runs differ as much",
    )
    LOSS_HIDDEN = "loss_hidden", "noise could hide a loss beyond the tolerance"
    WITHOUT_PROMPTS = (
        "without_prompts",
        "figures without prompts have no interval; pool several runs in a baseline",
    )
    TOO_FEW_UNITS = "too_few_units", "{units:amount}; an interval needs {needed}"
    NEEDS_EVERY_PROMPT = (
        "needs_every_prompt",
        "{metric} needs every prompt, so its spread is unknown",
    )

    # What changed over a history of runs.
    STEPPED = (
        "stepped",
        "{metric} of {cell}: {change:step} with run {run_id}, {before:value} -> {after:value} "
        "(p {p_value:.3f}){judged:colon}",
    )
    TREND = (
        "trend",
        "{metric} of {cell}: a trend of {slope:+.3g} {unit} per run over {runs} runs "
        "(p {p_value:.3f}), no step",
    )
    NOTHING_FOUND = "nothing_found", "no change points or trends found"

    # Why a cell regressed, in the order of evidence.
    CAUSE_UNKNOWN = "cause_unknown", "cause unknown: {metrics:list} regressed"
    CAUSES = "causes", "{causes:list}: {because:all}"
    POSSIBLE_CAUSES = "possible_causes", "possible cause: {causes:list}: {because:all}"
    FACT_CHANGED = "fact_changed", "{name} {baseline} -> {candidate}"
    FEWER_ACCEPTED = "fewer_accepted", "fewer drafts are accepted, {shift:shift}{positions:curves}"
    SAME_ACCEPTANCE = "same_acceptance", "acceptance did not change ({shift:shift})"
    TEXT_CHANGED = "text_changed", "greedy output changed"
    ROUND_LONGER = "round_longer", "a round takes longer, {shift:shift}{parts:parts}"
    STEP_FASTER = (
        "step_faster",
        "a round takes {shift:shift}, and a K=0 step got faster, {step:shift}{parts:parts}",
    )
    PART_MOVED = "part_moved", "{name} {shift:shift}"
    ROUND_MOVED = "round_moved", "round time {shift:shift}"
    METRICS_ROSE = "metrics_rose", "{metrics:commas} rose"
    STEP_SLOWER = (
        "step_slower",
        "K=0 is also slower, {step:shift} per step: driver, clocks, packages or the machine",
    )

    # About the two sides of a check.
    ALLOWED = "allowed", "allowed to differ: {name}: {baseline} in the baseline, {candidate} now"
    CHANGED = "changed", "changed since: {name}: {baseline} -> {candidate}"
    THREADS_DIFFER = (
        "threads_differ",
        "{difference}: ratios and counts were compared{dropped:not_times}; {remedy:all}",
    )
    SAME_THREADS = "same_threads", "give the runs of both sides the same --threads"
    MEASURE_WITH_THREADS = (
        "measure_with_threads",
        "`specbench run --threads {threads}` measures as the baseline did",
    )
    NOT_IN_BASELINE = "not_in_baseline", "{metric} is missing from the baseline and was not judged"
    CLOCK_IN_PROMPTS = (
        "clock_in_prompts",
        "{engine}: {differing} of {compared} prompts of {workload} differ: its chat template "
        "prints the server's own date, or has changed; answers to these were not compared",
    )
    SAME_RUNS = (
        "same_runs",
        "baseline and candidate are the same: {runs:list}. A run cannot be worse than itself; "
        "name an earlier run, or a file of `specbench baseline`",
    )
    OWN_RUN = "own_run", "the baseline includes the candidate's own run"
    RUNS_BUSY = "runs_busy", "busy machine, so these times decide nothing: {runs:all}"
    BUSY_RUN = "busy_run", "{side} {run_id}: {because:and}"
    SIDE_INTERRUPTED = (
        "side_interrupted",
        "the {side} was interrupted: judging what it measured so far",
    )
    NEW_CELLS = "new_cells", "{cells:amount} of the candidate without a baseline: not judged"
    AUTO_COUNTS = (
        "auto_counts",
        "counts at K=auto depend on the K it picked and are not judged",
    )
    SINGLE_RUNS = (
        "single_runs",
        "single runs: the variation between identical runs is assumed, not measured; `specbench "
        "baseline` of several runs measures it",
    )
    MEASURE_AGAIN = "measure_again", "measure again while nothing else runs"
    MEASURE_AGAIN_OR = (
        "measure_again_or",
        "measure again while nothing else runs, or judge only ratios and counts: --fail-on {rest}",
    )
    BASELINE_BUSY = (
        "baseline_busy",
        "measured on a busy machine: {run_id}: {because:all}. `check` cannot judge absolute times "
        "against this baseline; measure it again while nothing else runs",
    )


Scalar = bool | int | float | str | None
Figure = Scalar | Interval | tuple["Reason | Scalar", ...]


@dataclass(frozen=True, slots=True)
class Reason:
    """A fact behind an answer, or what to do next."""

    kind: Annotated[Kind, Doc("the kind, one of a closed set")]
    figures: Annotated[Mapping[str, Figure], Doc("its figures by name")] = field(
        default_factory=dict, hash=False
    )


_ORDER = {kind: i for i, kind in enumerate(Kind)}


def by_importance(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """The reasons in the order of their kinds, the most important first."""
    return tuple(sorted(reasons, key=lambda reason: _ORDER[reason.kind]))
