"""What only the experiments of papers 000 to 004 need: models they compare with, and ways of learning they describe.

Not part of the installed library, which never imports it. The keys of the papers are those of docs/references.md.
"""
