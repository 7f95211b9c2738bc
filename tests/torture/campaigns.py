"""All campaigns, in the order in which they run."""

from torture import datasets, limits, model_files, processes, streams, switches, verbs, workers, writes

ALL = (
    datasets.CAMPAIGN,
    model_files.CAMPAIGN,
    writes.CAMPAIGN,
    verbs.CAMPAIGN,
    streams.CAMPAIGN,
    switches.CAMPAIGN,
    limits.CAMPAIGN,
    limits.BOMBS,
    processes.DISKS,
    processes.RACING,
    processes.KILLS,
    workers.CAMPAIGN,
)
