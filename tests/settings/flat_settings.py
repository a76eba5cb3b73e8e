"""Settings by the names that run.json has for them, whatever group they are in."""

from dataclasses import replace
from typing import Any

from specbench.settings import RunSettings, StoredSettings


def settings_of(**values: Any) -> RunSettings:
    return RunSettings.of(StoredSettings(**values))


def changed(settings: RunSettings, **values: Any) -> RunSettings:
    return RunSettings.of(replace(settings.stored, **values))
