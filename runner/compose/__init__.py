"""Overrides -> configuration: the only package that imports Hydra and OmegaConf.

sources.py    where configurations are found: conf/, templates such as {processes}gpu, recipes/
flags.py      the flags that there are
arguments.py  a command line, taken apart
form.py       an override that cannot be read
defaults.py   what is wrong with the defaults list of a file
overrides.py  what is wrong with overrides, all of it at once
folders.py    where a run would write
loading.py    overrides -> a checked plan
reading.py    what keeps a YAML file from being read
jobs.py       what a recipe's sweep would start
entry.py      what Hydra calls for each job, here or where a launcher has carried it
app.py        Hydra's application: one job, a sweep, --cfg, --help, completion
"""
