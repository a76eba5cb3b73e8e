"""The settings of a run in frozen groups, and how their words on the command line are read.

An option is one field of one group in `groups.py`: its name, help, bounds and default. Open that
first; `run_settings.py` joins the groups, `option.py` describes the option of a field, and
`words.py` reads 0..8, 4k, 3m and 2%. run.json has every value except --method, since it has the
pairings that the option selected.
"""

from specbench.settings.groups import (
    AcceptanceRule,
    DecoderSettings,
    DraftSettings,
    EffortSettings,
    ForecastSettings,
    LoadSettings,
    MachineSettings,
    SamplingSettings,
    ServerSettings,
    WorkloadSettings,
)
from specbench.settings.run_settings import RunSettings, StoredSettings
from specbench.settings.words import (
    BUILTIN,
    EXPORTED,
    OMITTABLE,
    OPENAI,
    SERVED,
    STARTED,
    TRANSFORMERS,
)
