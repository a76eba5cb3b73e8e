"""What may a run be asked for, and with which words of the command line?

In go words, out come frozen groups of settings, of which run.json has every value but
--method, whose pairings it names. An option
is one field of one group in `groups.py`: its name, help, bounds and default. Open that first;
`run_settings.py` holds the groups together, `option.py` is what a field says of its option, and
`words.py` reads 0..8, 4k, 3m and 2%.
"""

from specbench.settings.decoder import DecoderSettings
from specbench.settings.groups import (
    AcceptanceRule,
    DraftSettings,
    EffortSettings,
    ForecastSettings,
    LoadSettings,
    MachineSettings,
    SamplingSettings,
    WorkloadSettings,
)
from specbench.settings.run_settings import RunSettings, StoredSettings
from specbench.settings.servers import ServerSettings
from specbench.settings.words import BUILTIN, EXPORTED, OPENAI, SERVED, TRANSFORMERS

__all__ = [
    "BUILTIN",
    "EXPORTED",
    "OPENAI",
    "SERVED",
    "TRANSFORMERS",
    "AcceptanceRule",
    "DecoderSettings",
    "DraftSettings",
    "EffortSettings",
    "ForecastSettings",
    "LoadSettings",
    "MachineSettings",
    "RunSettings",
    "SamplingSettings",
    "ServerSettings",
    "StoredSettings",
    "WorkloadSettings",
]
