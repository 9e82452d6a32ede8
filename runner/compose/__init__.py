"""Overrides -> configuration: the only package that imports Hydra and OmegaConf.

sources.py    where configurations are found: conf/, templates such as {processes}gpu, recipes/
arguments.py  a command line, taken apart
overrides.py  what is wrong with overrides, all of it at once
loading.py    overrides -> a checked plan
reading.py    what keeps a YAML file from being read
jobs.py       what a recipe's sweep would start
app.py        Hydra's application: one job, a sweep, --cfg, --help, completion
"""
