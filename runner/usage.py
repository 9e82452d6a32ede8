"""What the verbs take: printed by VERB --help. Those of `run` are Hydra's own page, that of `compare` lies beside it."""

from __future__ import annotations

VERBS = ("run", "plan", "compare", "twin", "doctor", "recipes", "keep")

USAGE = {
    "plan": """python -m runner plan [KEY=VALUE ...] [--json] [--load] [--memory] [--scale] [--link LINK] [--inside LINK] [--from RUN]

Shows what a run would do, and starts nothing.

KEY=VALUE      as for a run: python -m runner --help lists them
--json         the plan for machines
--load         make the task too, where only that tells how many items and parameters it has
--memory       predict the peak memory of a device (imports torch and runs a window)
--scale        the same for 8 to 4,096 devices, as a table
--link LINK    the link between the nodes: link.yaml as doctor writes it, or a choice such as 10gbit
--inside LINK  that between the processes of one node
--from RUN     take the pace of computing from a run's folder
--config-dir FOLDER   a folder with configurations of your own

Exit code: 0, or 2 for a configuration that cannot run.""",
    "twin": """python -m runner twin RUN

Trains a run once more, from weights moved by one unit in their last place, into a folder beside it (RUN-twin): what rounding
alone does in that experiment, which compare then allows.

RUN   a run's folder: outputs/DAY/RUN

Exit code: 0, 1 where training fails, 2 where RUN is no run.""",
    "recipes": """python -m runner recipes [--json] [--config-dir FOLDER]

Lists the recipes, what they are about, and where they come from.

--json                for machines
--config-dir FOLDER   a folder with configurations of your own""",
    "keep": """python -m runner keep RUN... recipe=NAME [--to FOLDER] [--config-dir FOLDER]

Keeps finished runs as a recipe's reference: from then on the recipe ends with the verdict against it.

RUN                   a run's folder, or a folder of runs; of several runs of one experiment the first is kept
--to FOLDER           where NAME.reference.json goes, instead of beside the recipe
--config-dir FOLDER   a folder with configurations of your own

Exit code: 0, or 2 where that cannot be kept.""",
    "doctor": """python -m runner doctor [hardware=Nnode node.rank=R rendezvous=HOST:PORT] [node.wait=SECONDS] [out=FILE] [--json]

Looks at this machine: what it has, what is wrong, how fast its processes exchange gradients. With the settings of several nodes,
typed on each of them, it measures what lies between them.

hardware=Nnode         how many nodes; node.rank=R says which of them this is, rendezvous where they meet
node.wait=SECONDS      how long they wait for each other
out=FILE               where the measured link goes (link.yaml), for plan --link
--json                 for machines

Exit code: 0 nothing is wrong, 1 something is.""",
}
