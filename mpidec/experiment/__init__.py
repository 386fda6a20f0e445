"""Experiments described by settings: their schema, their sources, and the command that runs
them.
"""

from . import build as build, schema as schema, settings as settings
from .build import accepted as accepted, seeded as seeded
from .command import TUNE as TUNE, main as main
from .expected import expected as expected, state as state
from .schema import (
    SchemaEntry as SchemaEntry,
    Setting as Setting,
    Value as Value,
    abbreviate as abbreviate,
    check_name as check_name,
    entries as entries,
    flag_settings as flag_settings,
    flags as flags,
    parse as parse,
    setting as setting,
    to_toml as to_toml,
)
from .settings import (
    Experiment as Experiment,
    metric_files as metric_files,
    metrics_of as metrics_of,
)
from .timeline import stragglers as stragglers, timeline_of as timeline_of, traced as traced
