"""`mkbench` on two hosts that share no memory: nodes are found, and payload crosses the link between them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from daemons import require, wait_until
from hosts import Hosts, two_hosts
from readme import command_of_readme

pytestmark = pytest.mark.mpi

RUN = ("run", "gemm_ar", "--platform", "host", "--nodes", "2", "--ranks-per-node", "2", "--transport", "tcp")
# Large enough that the payload is most of what crosses the link.
SMALL = ("--size", "512", "--comm-sms", "2", "--samples", "5", "--deadline", "2")
START_S = 15.0
PROMISE_S = 10.0


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    require("ip", "unshare", "nsenter")
    if subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("this user may not make namespaces: run the tests as root")
    with two_hosts(tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts
        assert hosts.processes() == []


@pytest.fixture
def both_hosts(tmp_path: Path) -> dict[str, str]:
    """What a user sets so that `mkbench` without a launcher uses both hosts."""
    (tmp_path / "machines").write_text("node1:2\nnode2:2\n")
    return {"HYDRA_HOST_FILE": str(tmp_path / "machines"), "TMPDIR": str(tmp_path)}


def require_exact(out: Path) -> dict[str, Any]:
    (line,) = (out / "records.jsonl").read_text().splitlines()
    record: dict[str, Any] = json.loads(line)
    assert record["status"] == "ok", record["message"]
    assert record["check"] == {"elements": 4 * 512 * 512, "mismatches": 0, "first": None}
    assert record["meta"]["hosts"] == ["node1", "node2"]
    # Hosts do not share a clock.
    assert record["details"]["start_skew_us"] is None
    return record


@pytest.mark.parametrize("alone", [False, True], ids=["mpiexec as in readme", "without a launcher"])
def test_two_hosts_are_exact_and_payload_crosses_the_link(
    alone: bool, hosts: Hosts, both_hosts: dict[str, str], tmp_path: Path
):
    command, variables = ["mkbench", *RUN], both_hosts
    if not alone:
        command, variables = command_of_readme("mpiexec"), {}
    before = hosts.received_bytes("node1")
    done = hosts.run("node1", *command, *SMALL, "--out", str(tmp_path / "run"), **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("elements are right, on 4 ranks") == 1
    record = require_exact(tmp_path / "run")
    # Towards node1 only the node sums are large: inputs are made where they are, the reference on node1.
    payload = record["network_bytes"] // 2 * record["details"]["launches"]
    crossed = hosts.received_bytes("node1") - before
    assert payload < crossed < 1.5 * payload


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--transport", "shm"), "transport shm needs all nodes on one machine"),
        (("--nodes", "1", "--ranks-per-node", "4"), "2 ranks share a machine (ranks 0, 1)"),
    ],
)
def test_what_needs_one_machine_is_refused(arguments: tuple[str, ...], said: str, hosts: Hosts):
    done = hosts.run("node1", *command_of_readme("mpiexec"), *SMALL, *arguments)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr


def test_a_rank_that_is_lost_on_the_other_host_is_named(
    hosts: Hosts, both_hosts: dict[str, str], patched: list[str]
):
    started = monotonic()
    fault = {"MKBENCH_TEST_FAULT": "kill:3:launch 1"}
    done = hosts.run("node1", *patched, *RUN, *SMALL, **both_hosts, **fault)
    assert monotonic() - started < START_S + PROMISE_S
    assert done.returncode == 4
    assert "rank 3 on node2" in done.stderr
    assert "was killed by SIGKILL in phase 'launch 1'" in done.stderr
    wait_until(lambda: not hosts.processes(), "processes are left on the hosts", PROMISE_S)


def test_a_job_directory_that_the_other_host_does_not_see_is_said(hosts: Hosts, both_hosts: dict[str, str]):
    # /dev/shm is a folder of each host's own.
    done = hosts.run("node1", "mkbench", *RUN, *SMALL, **{**both_hosts, "TMPDIR": "/dev/shm"})
    assert done.returncode == 3, done.stderr
    assert "on node2 does not see the job directory /dev/shm/mkbench-job-" in done.stderr
    assert "set TMPDIR to a folder that all hosts share" in done.stderr
    assert os.linesep not in done.stderr.rstrip()
