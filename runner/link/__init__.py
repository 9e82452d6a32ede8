"""Nodes of a run on one machine: a network namespace for each, joined by a link of a chosen rate and delay.

emulated    the launcher's side: opens the nodes of a run and closes them
keeper      the one process that holds them: when it ends, for whatever reason, nothing of them is left
shaping     what is told to `ip` and `tc`: addresses, rates
wire        frames carried by hand between nodes, for delay, jitter and loss
spaces      entering a namespace
"""
