"""Start the ranks of one plan, watch them, end them.

    warm.py      the fork server, which loads torch once for all ranks and all jobs of a sweep
    local.py     a run on one machine
    nodes.py     a run over several machines, seen from the first one
    joining.py   the same, seen from another one
    introduction.py   who a node is, and whether it may take part
    outlet.py    what another one's ranks write, on its way to the first
    peer.py      the line between two of them
    ranks.py     the processes of one machine
    fault.py     which of all reported errors was the cause
    network.py   sockets and interfaces
    ending.py    signals, and the status that is written in the end
    child.py     what runs first in a rank
    progress.py  what a user sees meanwhile
    crowd.py     the same of jobs that run side by side elsewhere
    slurm.py     what Slurm tells a task that it has started
    queue.py     Slurm jobs, seen from who submitted them

Nothing here imports torch: it is loaded in the fork server.
"""
