"""Settings by their names in run.json, whatever their group."""

from dataclasses import replace
from typing import Any

from specbench.settings import RunSettings, StoredSettings


def settings_of(**values: Any) -> RunSettings:
    return RunSettings.of(StoredSettings(**values))


def changed(settings: RunSettings, **values: Any) -> RunSettings:
    return RunSettings.of(replace(settings.stored, **values))
