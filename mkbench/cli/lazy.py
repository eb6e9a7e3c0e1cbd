"""A click group that imports a command only when it is used, and speaks one line when something fails."""

import importlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click


class LazyGroup(click.Group):
    """Commands live in `<package>.<name>` as `command`; `commands_help` maps each name to its one line."""

    def __init__(self, *args: Any, package: str, commands_help: dict[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.package = package
        self.commands_help = commands_help

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands_help)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands_help:
            return None
        command: click.Command = importlib.import_module(f"{self.package}.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.commands_help and not name.startswith("-"):
            from mkbench.core.names import unknown

            raise unknown("command", name, self.commands_help)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.commands_help.items()))

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        """Run, turn whatever is raised into one line on stderr, and exit."""
        extra["standalone_mode"] = False
        try:
            code = super().main(args, prog_name, **extra)
            # A broken pipe must surface here and not while the interpreter shuts down.
            if sys.stdout is not None:  # it is None where the shell closed it
                sys.stdout.flush()
        except Exception as error:
            from mkbench.cli.failures import report

            code = report(error)
        sys.exit(code if isinstance(code, int) else 0)
