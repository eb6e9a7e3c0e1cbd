import click


@click.command()
@click.argument("what", required=False)
def command(what: str | None) -> None:
    """Show what can be chosen. WHAT is kernels, clusters, hardware, policies, platforms, reductions or
    transports. Without it all are shown.

    \b
    Examples:
      mkbench list
      mkbench list clusters
    """
    from mkbench.cli.catalogue import CATALOGUE
    from mkbench.cli.console import print_table
    from mkbench.core.names import unknown

    if what is not None and what not in CATALOGUE:
        raise unknown("list", what, CATALOGUE)
    for name in [what] if what else CATALOGUE:
        print_table((name, "what it is"), CATALOGUE[name](), fold=True)
