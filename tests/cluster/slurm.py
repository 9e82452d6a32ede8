"""A real Slurm of two nodes on this machine, from Debian's packages (slurm-wlm, munge), brought up from nothing in a folder.

Its own authentication, controller and daemons, all on free ports; nothing outside of the folder is written. Also by hand:

    python -m tests.cluster.slurm FOLDER      says what to export, and ends with Ctrl-C
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "squeue", "scancel", "scontrol")
CONFIGURATION = """\
ClusterName=samestep
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPort={ports[0]}
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MailProg=/bin/true
KillWait=5
EnforcePartLimits=ALL
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 State=UNKNOWN
PartitionName=both Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """The programs that are not installed here."""
    return [p for p in PROGRAMS if shutil.which(p) is None and not Path("/usr/sbin", p).exists()]


@contextmanager
def cluster(folder: Path) -> Iterator[Path]:
    """Slurm, while the context lasts; gives its configuration, which SLURM_CONF must name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state").mkdir()
    folder.chmod(0o755)
    for name in ("n1", "n2"):
        (folder / f"spool-{name}").mkdir()
    key, configuration = folder / "munge.key", folder / "slurm.conf"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    user = pwd.getpwuid(os.getuid()).pw_name
    host = socket.gethostname().partition(".")[0]
    configuration.write_text(CONFIGURATION.format(folder=folder, user=user, host=host, ports=_free(3)))
    environment = {**os.environ, "SLURM_CONF": str(configuration), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> None:
        out = (folder / f"{command[0]}-{len(started)}.out").open("wb")
        started.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out))
        out.close()

    try:
        files = ("socket", "pid-file", "log-file", "seed-file")
        own = [f"--{f}={folder}/munge.{f.partition('-')[0]}" for f in files]
        start("munged", "--foreground", "--force", f"--key-file={key}", *own)
        _until(lambda: (folder / "munge.socket").exists(), "munged has no socket", folder)
        start("slurmctld", "-D", "-f", str(configuration))
        for name in ("n1", "n2"):
            start("slurmd", "-D", "-N", name, "-f", str(configuration))
        _until(lambda: _states(environment) == ["idle", "idle"], "the nodes are not idle", folder)
        yield configuration
    finally:
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(["scancel", f"--user={user}"], env=environment, timeout=10, capture_output=True, check=False)
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


def _states(environment: dict[str, str]) -> list[str]:
    asked = ["sinfo", "--noheader", "--Node", "--format=%t"]
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, timeout=10, check=False)
    return done.stdout.split()


def _until(condition: object, what: str, folder: Path) -> None:
    deadline = time.monotonic() + 30
    while not condition():  # type: ignore[operator]
        if time.monotonic() > deadline:
            told = "\n".join(
                f"{f.name}: {f.read_text(errors='replace')[-500:]}" for f in sorted(folder.glob("*.[lo]*"))
            )
            raise AssertionError(f"{what}\n{told}")
        time.sleep(0.2)


def _free(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


if __name__ == "__main__":
    with cluster(Path(sys.argv[1]).absolute()) as conf:
        print(f"export SLURM_CONF={conf}", flush=True)
        with suppress(KeyboardInterrupt):
            signal.pause()
