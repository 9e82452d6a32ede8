"""What a machine has, what is wrong with it and with its way to other nodes, and how fast that is.

command     the verb: its arguments, what it prints, its exit code
machine     what there is here, looked up without torch
checks      what of that is wrong, with the cure
first       the node that others come to: it asks them, and judges
other       a node that answers the first one's questions
reach       can one node connect to another?
sweep       all-reduces of growing sizes, by ranks of their own; `measuring` is what these do
fit         latency and bandwidth of a sweep, and link.yaml
"""
