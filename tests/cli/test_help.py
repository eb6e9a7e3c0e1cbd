import json
import math
import os
import subprocess
import sys

import pytest

from mkbench.cli import COMMANDS, app

HEAVY = {"matplotlib", "mpi4py", "numpy", "pandas", "pydantic", "rich"}


@pytest.mark.parametrize("words", [(), *((name,) for name in COMMANDS)])
def test_help_imports_nothing_heavy(words):
    script = (
        "import json, sys\n"
        "from mkbench.cli import app\n"
        f"try: app([*{words!r}, '--help'])\n"
        "except SystemExit: print(json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout.splitlines()[-1])
    assert not HEAVY & set(modules)
    assert not [
        name for name in modules if name.startswith("mkbench.") and not name.startswith("mkbench.cli")
    ]


def test_help_is_as_quick_as_click():
    """At most 1.5 times `import click` in processor time: least of interleaved runs, for noise only adds."""
    commands = {"click": ("-c", "import click"), "help": ("-m", "mkbench", "--help")}
    least = dict.fromkeys(commands, math.inf)
    for round in range(40):
        for name, words in commands.items():
            least[name] = min(least[name], processor_seconds([sys.executable, *words]))
        if round >= 4 and least["help"] <= 1.5 * least["click"]:
            break
    assert least["help"] <= 1.5 * least["click"]


def processor_seconds(command):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches_with_an_example(mkbench, name):
    result = mkbench(name, "--help")
    assert result.exit_code == 0
    assert f"\n    mkbench {name}" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_group_help_lists_every_command_and_exit_code(mkbench):
    result = mkbench("--help")
    for name, line in COMMANDS.items():
        assert f"  {name:<8} {line}\n" in result.stdout
    for code in (0, 1, 2, 3, 4, 5, 7, 70):
        assert f" {code} " in result.stdout


def test_every_command_module_is_listed():
    assert [app.get_command(None, name).name for name in COMMANDS] == ["command"] * len(COMMANDS)
    assert app.get_command(None, "lazy") is None
