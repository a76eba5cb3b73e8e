"""The records that measuring writes and analysis reads.

Open `keys.py` first: a measurement is a draft configuration under a condition.

Every record is frozen, keyword-only and JSON-ready (runs/ writes and reads them). A value
that a machine or an engine cannot give is None: absent, never zero.
"""

from specbench.records.decisions import (
    CellSummary,
    Decision,
    Goodput,
    Margin,
    Screening,
    SpeedupVerdict,
)
from specbench.records.forecasts import (
    AdaptiveBound,
    EngineCost,
    ForecastPoint,
    ForecastRecord,
    RoundCost,
    TraceRecord,
)
from specbench.records.keys import (
    ASSISTED_DEFAULT,
    NO_DRAFTER,
    Auto,
    CellKey,
    Condition,
    DraftConfig,
    Fixed,
    Length,
    lengths,
    ranges,
)
from specbench.records.lossy import SIMULATED, LossyRule, acceptance_rule
from specbench.records.measured import (
    ALL_PROMPTS,
    AnswerCheck,
    BlockPurpose,
    BlockRecord,
    DeviceSample,
    FailureRecord,
    FirstDifference,
    ForwardCost,
    ImportedRecord,
    LimitRecord,
    MemoryRecord,
    PassRecord,
    ReferenceRecord,
    RequestCounts,
    RequestRecord,
    Result,
    RoundLog,
    RoundTimeline,
    SamplesRecord,
    StatedAnswer,
)
from specbench.records.provenance import (
    SESSIONS_PER_K,
    CellPlan,
    ClientLoad,
    Contender,
    EarlierRuns,
    EngineRecord,
    Environment,
    ExtensionRecord,
    KernelChoice,
    ModelIdentity,
    RunRecord,
    ServerRecord,
    chosen_threads,
)
from specbench.records.reasons import Kind, Reason, by_importance
from specbench.records.requests import (
    Message,
    Prompt,
    Request,
    RequestSettings,
    Role,
    Sampling,
    ids_sha256,
)
from specbench.stats.summaries import Interval
