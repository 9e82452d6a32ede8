"""Run folders -> verdicts: are they the same, where do they part, and why.

columns.py  the rows of a file as arrays, a block of lines at a time
find.py     run folders: which ones a command names
read.py     what is wrong with a run's folder, and its rows as arrays
align.py    two runs on the same updates: distances, and what must be equal to the bit
verdict.py  the rule: whether distances are what rounding does
cause.py    the first thing in the log that explains a difference
pairs.py    the verdict on two runs, with its reason
outcome.py  several seeds on both sides: a test of the outcome
session.py  everything that one command compares
facts.py    what is told beside the verdicts; table.py shows it on the terminal, report.py in a browser, png.py in a picture
reference.py  runs that were kept, as the references of recipes
command.py  the command line

No torch. The rule and its reasoning: docs/compare.md.
"""
