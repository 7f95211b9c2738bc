"""Why a fit or a part of it ended early, in the words of `info_`; whoever judges a model without torch reads them."""

INTERRUPTED = "interrupted"
OUT_OF_TIME = "time is up"
TOO_SHORT = "time budget shorter than one step: one step was taken"
