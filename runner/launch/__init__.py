"""Start the ranks of one plan, watch them, end them.

    warm.py      the fork server, which loads torch once for all ranks and all jobs of a sweep
    local.py     the ranks of one machine
    ending.py    signals, and the status that is written in the end
    child.py     what runs first in a rank
    progress.py  what a user sees meanwhile

Nothing here imports torch: it is loaded in the fork server.
"""
