"""Two hosts on one machine: each has its own network, name, /dev/shm and System V IPC, and a link joins them.

They share processes and files. Namespaces belong to a process of each host: when it ends, nothing is left.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from daemons import wait_until

from mkbench.dist.processes import die_with_parent

#: The names that README uses, with their addresses.
ADDRESSES = {"node1": "10.77.0.1", "node2": "10.77.0.2"}
LINK = "rail0"
_NAMESPACES = ("--net", "--uts", "--mount", "--ipc")
_SETUP = """\
set -e
hostname {name}
mount -t tmpfs tmpfs /dev/shm
# /sys shows the network of who mounts it, and MPI looks there for interfaces.
mount -t sysfs sysfs /sys
mount --bind {hosts_file} /etc/hosts
ip link set lo up
echo ready
# Until the test closes the pipe, or is gone.
exec cat
"""
#: mpiexec calls it in place of ssh: options of ssh, the host, and a line for its shell.
_REMOTE_SHELL = """\
#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
case $host in
%s
esac
exec nsenter --target "$pid" %s sh -c "$*"
"""


@dataclass(frozen=True, slots=True)
class Hosts:
    """Both hosts while they are up: `pids` of the processes that keep them, by name."""

    pids: Mapping[str, int]
    remote_shell: Path

    def run(self, host: str, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command on `host` as after `. .venv/bin/activate`; MPI reaches the other host from it."""
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HYDRA_LAUNCHER": "ssh",
            "HYDRA_LAUNCHER_EXEC": str(self.remote_shell),
            # UCX takes both for one machine, as they share the boot id, and would go round the link.
            "UCX_TLS": "tcp,self",
            "UCX_NET_DEVICES": LINK,
        }
        return subprocess.run(
            ["nsenter", "--target", str(self.pids[host]), *_NAMESPACES, *command],
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def received_bytes(self, host: str) -> int:
        """How much has come to `host` through the link."""
        shown = self.run(host, "ip", "-json", "-stats", "link", "show", "dev", LINK)
        (link,) = json.loads(shown.stdout)
        return int(link["stats64"]["rx"]["bytes"])

    def processes(self) -> list[str]:
        """Command lines of what runs on the hosts, apart from what keeps them."""
        networks = {os.readlink(f"/proc/{pid}/ns/net") for pid in self.pids.values()}
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in self.pids.values():
                continue
            try:
                if os.readlink(entry / "ns" / "net") in networks:
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found


@contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    """Bring both up; they are gone after the block. Needs root. `folder` is for their files."""
    hosts_file = folder / "hosts"
    hosts_file.write_text("".join(f"{address} {name}\n" for name, address in ADDRESSES.items()))
    with ExitStack() as stack:
        pids = {name: stack.enter_context(_host(name, hosts_file)) for name in ADDRESSES}
        first, second = pids.values()
        _ip(f"link add {LINK} netns {first} type veth peer name {LINK} netns {second}")
        for name, pid in pids.items():
            _ip(f"addr add {ADDRESSES[name]}/24 dev {LINK}", of=pid)
            _ip(f"link set {LINK} up", of=pid)
        wait_until(lambda: all(_is_up(pid) for pid in pids.values()), "the link does not come up")
        remote_shell = folder / "remote_shell"
        cases = "\n".join(f"{name}) pid={pid} ;;" for name, pid in pids.items())
        remote_shell.write_text(_REMOTE_SHELL % (cases, " ".join(_NAMESPACES)))
        remote_shell.chmod(0o755)
        yield Hosts(pids, remote_shell)


@contextmanager
def _host(name: str, hosts_file: Path) -> Iterator[int]:
    setup = _SETUP.format(name=name, hosts_file=shlex.quote(str(hosts_file)))
    process = subprocess.Popen(
        ["unshare", *_NAMESPACES, "sh", "-c", setup],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,
    )
    # Closes the pipes and waits.
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", "cannot set up a host"
        yield process.pid


def _is_up(pid: int) -> bool:
    shown = subprocess.check_output(["nsenter", "--target", str(pid), "--net", "ip", "-json", "link"])
    return {"UP"} == {link["operstate"] for link in json.loads(shown) if link["ifname"] == LINK}


def _ip(arguments: str, of: int | None = None) -> None:
    inside = ["nsenter", "--target", str(of), "--net"] if of else []
    subprocess.run([*inside, "ip", *arguments.split()], check=True, timeout=30)
