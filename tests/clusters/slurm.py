"""A Slurm of one machine with all its state in one folder, on free ports of the loopback interface."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from daemons import daemon, wait_until

_DEADLINE_S = 45.0
CONFIG = """\
ClusterName=mkbench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
FirstJobId={first_job}
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=debug Nodes={host} Default=YES OverSubscribe=FORCE:8 MaxTime=10 State=UP
"""


class Slurm:
    """Commands of a running Slurm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command as after `. .venv/bin/activate`, and as if the tests were in no job themselves."""
        environment = {n: value for n, value in os.environ.items() if not n.startswith(("SLURM", "PMI"))}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment["SLURM_CONF"] = str(self.folder / "slurm.conf")
        try:
            return subprocess.run(
                command,
                cwd=self.folder,
                env=environment | variables,
                capture_output=True,
                text=True,
                timeout=_DEADLINE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            said = [text.decode() for text in (error.stdout, error.stderr) if text]
            logs = [log.read_text()[-4000:] for log in self.folder.glob("*.log")]
            pytest.fail("\n".join([f"{command} runs for {_DEADLINE_S:g} s", *said, *logs]))

    def run_batch(self, line: str) -> str:
        """What a batch job of four tasks prints that runs `line` of shell, with "exit code N" at its end."""
        output = self.folder / "output"
        # Not sbatch --wait, which looks only every ten seconds.
        submitted = self.run(
            "sbatch", "-n", "4", "--output", str(output), "--wrap", f"{line}\necho exit code $?"
        )
        assert submitted.returncode == 0, submitted.stderr
        wait_until(lambda: not self.jobs(), f"the job does not end: {line}")
        return output.read_text()

    def jobs(self) -> str:
        return self.run("squeue", "--noheader").stdout

    def is_idle(self) -> bool:
        return self.run("sinfo", "--noheader", "--format=%T").stdout.strip() == "idle"

    def cancel_all(self) -> None:
        if self.jobs():
            self.run("scancel", "--user=root")
            wait_until(lambda: not self.jobs(), "jobs cannot be cancelled")


@contextmanager
def running_slurm() -> Iterator[Slurm]:
    """Start the daemons; they end with the block. Needs root."""
    with ExitStack() as stack:
        # Not tmp_path: munged wants a folder that everybody may enter.
        folder = Path(tempfile.mkdtemp(prefix="mkbench-slurm-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        _write_key(folder / "munge.key")
        host = socket.gethostname().partition(".")[0]
        controller_port, node_port = _free_ports(2)
        settings = CONFIG.format(
            host=host,
            folder=folder,
            controller_port=controller_port,
            node_port=node_port,
            # MPICH names a file in /dev/shm after the job, and hangs on one that a killed job has left.
            first_job=1 + secrets.randbelow(50_000_000),
        )
        (folder / "slurm.conf").write_text(settings)
        slurm = Slurm(folder)
        munge = f"--socket={folder}/munge.socket"
        files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        stack.enter_context(daemon(["munged", "--foreground", munge, *files], folder / "munged.log"))
        wait_until(lambda: slurm.run("munge", "-n", munge).returncode == 0, "munged does not answer")
        for name in ("slurmctld", "slurmd"):
            command = [name, "-D", "-f", str(folder / "slurm.conf")]
            stack.enter_context(daemon(command, folder / f"{name}.log"))
        wait_until(slurm.is_idle, "the node of Slurm does not come up")
        stack.callback(slurm.cancel_all)
        yield slurm


def _write_key(path: Path) -> None:
    path.touch(mode=0o600)
    path.write_bytes(secrets.token_bytes(128))


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in held]
