"""A Slurm cluster of this machine's own user: a controller and a few nodes, on free ports, in a temporary folder.

Every node is a real slurmd that believes in one GPU (a device file stands for it). Nothing of it is left once it is stopped.
"""

import getpass
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.ports import free_ports

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
MISSING = tuple(name for name in PROGRAMS if not shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin"))
_ABPROF = """
ClusterName=abprof
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdParameters=config_overrides
SlurmdTimeout=6
KillWait=30
ReturnToService=2
GresTypes=gpu
TaskProlog={folder}/prolog.sh
"""
_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=2000 Gres=gpu:1 Feature={feature}"
_PARTITION = "PartitionName=gpus Nodes={nodes} Default=YES MaxTime=60 State=UP"


@dataclass
class Cluster:
    """A running cluster. `environment`: the variables that Slurm's commands need."""

    folder: Path
    environment: dict[str, str]
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def ask(self, *argv: str) -> str:
        """Standard output of one of Slurm's commands."""
        env = {**os.environ, **self.environment}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def jobs(self, *states: str) -> list[str]:
        """Array elements and jobs in these states (all that the controller remembers), as ARRAY_ELEMENT or JOB."""
        chosen = ",".join(states) or "all"
        return self.ask("squeue", "--array", "--noheader", f"--states={chosen}", "--format=%i").split()

    def facts(self, job: str) -> dict[str, str]:
        """Return the controller's facts of a job: JobState, Partition, Features, TresPerNode, Restarts, ..."""
        words = self.ask("scontrol", "show", "job", "--oneliner", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def cancel(self, job: str) -> None:
        """As anybody may who is allowed to."""
        self.ask("scancel", job)

    def lose(self, node: str) -> None:
        """A node dies: its slurmd and everything that it runs, with -9."""
        there = self._of(node)
        for deed in (psutil.Process.suspend, psutil.Process.kill):  # at once: none reports how another ended
            for process in there:
                with suppress(psutil.NoSuchProcess):
                    deed(process)
        self.nodes.pop(node).wait(timeout=30)

    def _of(self, *nodes: str) -> list[psutil.Process]:
        """Living processes of these nodes: their daemons and all that they run."""
        found = []
        logs = {str(self.folder / f"{node}.log") for node in nodes}
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                env = process.environ()
                ours = env.get("SLURM_CONF") == self.environment["SLURM_CONF"]
                there = ours and env.get("SLURMD_NODENAME", env.get("NODE_OF_TEST")) in nodes
                # What starts a job on a node writes its own name where its environment was.
                starts = process.name() == "slurmstepd" and logs & {file.path for file in process.open_files()}
                if (there or starts) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


@contextmanager
def cluster(folder: Path, features: dict[str, str]) -> Iterator[Cluster]:
    """A cluster while the block runs: node name -> its feature. Fails where one of its daemons does not come up."""
    host, user = socket.gethostname().split(".")[0], getpass.getuser()
    (folder / "state").mkdir(parents=True)
    ports = free_ports(1 + len(features))
    lines = [_ABPROF.format(host=host, user=user, folder=folder, controller=ports[0])]
    for (name, feature), port in zip(features.items(), ports[1:], strict=True):
        lines.append(_NODE.format(name=name, host=host, port=port, feature=feature))
    lines.append(_PARTITION.format(nodes=",".join(features)))
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    (folder / "gres.conf").write_text("".join(f"NodeName={name} Name=gpu File=/dev/null\n" for name in features))
    # Every node has a simulated device of its own, as if it were another machine.
    device = 'echo "export ABPROF_SHARD_DEVICE=simulated:$SLURMD_NODENAME"'
    (folder / "prolog.sh").write_text(f'#!/bin/sh\n[ -z "$ABPROF_SIMULATED" ] || {device}\n')
    (folder / "prolog.sh").chmod(0o755)
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    made = Cluster(folder, {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path})
    controller = _daemon(made, "slurmctld", "-D", "-c")
    try:
        for name in features:
            made.nodes[name] = _daemon(made, "slurmd", "-D", "-N", name)
        _up(made, len(features))
        yield made
    finally:
        _down(made, controller)


def _daemon(cluster: Cluster, *argv: str) -> subprocess.Popen[bytes]:
    out = (cluster.folder / f"{argv[-1]}.out").open("wb")
    env = {**os.environ, **cluster.environment, "NODE_OF_TEST": argv[-1]}
    with out:
        return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)


def _up(cluster: Cluster, nodes: int) -> None:
    end = time.monotonic() + 60
    while True:
        with suppress(AssertionError):
            states = cluster.ask("sinfo", "--noheader", "--Node", "--format=%T %G").splitlines()
            if len(states) == nodes and all(re.match(r"idle gpu:1\b", state) for state in states):
                return
        said = "".join(path.read_text(errors="replace") for path in sorted(cluster.folder.glob("*.log")))
        assert time.monotonic() < end, f"Slurm did not come up:\n{said}"
        time.sleep(0.1)


def _down(cluster: Cluster, controller: subprocess.Popen[bytes]) -> None:
    """Stop jobs, then daemons, then their remaining processes."""
    nodes = re.findall(r"NodeName=(\S+)", (cluster.folder / "slurm.conf").read_text())
    with suppress(AssertionError, subprocess.TimeoutExpired):
        cluster.ask("scancel", f"--user={getpass.getuser()}")
    for daemon in (*cluster.nodes.values(), controller):
        daemon.terminate()
    for daemon in (*cluster.nodes.values(), controller):
        with suppress(subprocess.TimeoutExpired):
            daemon.wait(timeout=20)
    left = cluster._of(*nodes)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=20)
    for daemon in (*cluster.nodes.values(), controller):
        daemon.wait(timeout=20)
    assert cluster._of(*nodes) == []
