"""Overrides -> configuration: the only package that imports Hydra and OmegaConf.

sources.py    where configurations are found: conf/, templates such as {processes}gpu, recipes/
overrides.py  what is wrong with a command line, all of it at once
app.py        Hydra's application: one job, a sweep, --cfg, --help, completion
"""
