"""All campaigns, in the order in which they run."""

from torture import datasets, model_files, streams, switches, verbs, writes

ALL = tuple(module.CAMPAIGN for module in (datasets, model_files, writes, verbs, streams, switches))
