"""The vocabulary: what the measuring half writes and the analysing half reads.

Open `keys.py` first: what was measured is a draft under a condition.

Every record is frozen, keyword-only and JSON-ready (runs/ writes and reads them). A value
that a machine or an engine cannot give is None: absent, never zero.
"""

from specbench.records.answers import CellSummary, Decision, Goodput
from specbench.records.engines import Contender, EngineRecord, KernelChoice, chosen_threads
from specbench.records.extensions import ExtensionRecord
from specbench.records.forecasts import (
    EngineCost,
    ForecastPoint,
    ForecastRecord,
    RoundCost,
)
from specbench.records.imported import ImportedRecord
from specbench.records.keys import ASSISTED_DEFAULT, NO_DRAFTER, CellKey, Condition, Draft
from specbench.records.lengths import Auto, Fixed, Length
from specbench.records.lossy import LossyRule, acceptance_rule
from specbench.records.measured import (
    ALL_PROMPTS,
    AnswerCheck,
    BlockPurpose,
    BlockRecord,
    DeviceSample,
    FailureRecord,
    FirstDifference,
    ForwardCost,
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
)
from specbench.records.prompts import Message, Prompt, Role, Sampling, ids_sha256
from specbench.records.provenance import (
    CellPlan,
    Environment,
    ModelIdentity,
    RunRecord,
    no_template,
)
from specbench.records.requests import Request
from specbench.records.servers import SESSIONS_PER_K, ClientLoad, ServerRecord
from specbench.records.traces import TraceRecord
from specbench.stats.interval import Interval

__all__ = [
    "ALL_PROMPTS",
    "ASSISTED_DEFAULT",
    "NO_DRAFTER",
    "SESSIONS_PER_K",
    "AnswerCheck",
    "Auto",
    "BlockPurpose",
    "BlockRecord",
    "CellKey",
    "CellPlan",
    "CellSummary",
    "ClientLoad",
    "Condition",
    "Contender",
    "Decision",
    "DeviceSample",
    "Draft",
    "EngineCost",
    "EngineRecord",
    "Environment",
    "ExtensionRecord",
    "FailureRecord",
    "FirstDifference",
    "Fixed",
    "ForecastPoint",
    "ForecastRecord",
    "ForwardCost",
    "Goodput",
    "ImportedRecord",
    "Interval",
    "KernelChoice",
    "Length",
    "LimitRecord",
    "LossyRule",
    "MemoryRecord",
    "Message",
    "ModelIdentity",
    "PassRecord",
    "Prompt",
    "ReferenceRecord",
    "Request",
    "RequestCounts",
    "RequestRecord",
    "Result",
    "Role",
    "RoundCost",
    "RoundLog",
    "RoundTimeline",
    "RunRecord",
    "SamplesRecord",
    "Sampling",
    "ServerRecord",
    "TraceRecord",
    "acceptance_rule",
    "chosen_threads",
    "ids_sha256",
    "no_template",
]
