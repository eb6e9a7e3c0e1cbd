import click


@click.command()
def command() -> None:
    """Show what this machine has, what is missing, and the command that fixes it.

    \b
    Examples:
      mkbench doctor

    Exits with 3 only if no platform can run here.
    """
    from mkbench.cli.console import print_table
    from mkbench.cli.machine import platforms, probe
    from mkbench.core.errors import EnvironmentProblem

    findings = probe()
    print_table(
        ("what", "found", "state", "needed for", "to fix it"),
        [(f.what, f.found, "ok" if f.ok else "missing", f.needed_for, f.fix or "") for f in findings],
        fold=True,
    )
    usable = platforms(findings)
    print_table(
        ("platform", "can run here"), [(name, "yes" if can else "no") for name, can in usable.items()]
    )
    if not any(usable.values()):
        fixes = [f.fix for f in findings if not f.ok and "sim" in f.needed_for and f.fix]
        raise EnvironmentProblem("no platform can run on this machine", hint=f"first: {' && '.join(fixes)}")
