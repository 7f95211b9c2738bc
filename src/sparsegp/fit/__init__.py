"""From a problem to a model: one pipeline for rows wherever they are."""
