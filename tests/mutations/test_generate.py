"""The rules find what they say, wherever it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from generate import RULES, SOURCES, mutants

from mkbench.core.resources import kernels_dir


def edits(tmp_path: Path, code: str) -> set[tuple[str, str]]:
    """Return rule and edited line of every mutant of `code`."""
    (tmp_path / "some.h").write_text(code)
    return {(mutant.rule, mutant.edited) for mutant in mutants(tmp_path, ("some.h",))}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("signal<Scope::gpu>(block, at(f(1)), 2);", {("signal dropped", "void();")}),
        ("std::atomic_ref<u64>(word).store(f(1), x);", {("signal dropped", "void();")}),
        ("if (!queue.push(block,\n  {1, f()}))\n  return;", {("signal dropped", "if (!true)")}),
        ("if (!wait_all<s>(block, x)) return;", {("wait dropped", "if (!true) return;")}),
        ("load<Scope::system>(x);", {("scope gpu", "load<Scope::gpu>(x);")}),
        (
            "add<Order::acq_rel>(x);",
            {
                ("order relaxed", "add<Order::relaxed>(x);"),
                ("order halved", "add<Order::acquire>(x);"),
                ("order halved", "add<Order::release>(x);"),
            },
        ),
        ("x.load(std::memory_order_acquire);", {("order relaxed", "x.load(std::memory_order_relaxed);")}),
        (
            "v = flag_value(e, f(1));",
            {
                ("epoch off by one", "v = flag_value(e - 1, f(1));"),
                ("epoch off by one", "v = flag_value(e + 1, f(1));"),
            },
        ),
        (
            "if (completes<s>(block, w, n)) f();",
            {
                ("count off by one", "if (completes<s>(block, w, n - 1)) f();"),
                ("count off by one", "if (completes<s>(block, w, n + 1)) f();"),
            },
        ),
        ("finish_stores(block);", {("store not finished", ";")}),
        ("consumed(slot, f(1), cols);", {("not cleared", "void();")}),
        ("if (x) say(finished);", {("signal dropped", "if (x) void();")}),
        ("return send(local.task);", {("signal dropped", "return true;")}),
        ("return reached<s>(block, next, x) == 1;", {("wait dropped", "return (next).count == 1;")}),
        ("if (tasks.can_receive(next)) f();", {("wait dropped", "if (true) f();")}),
        ("return engine_.write(lane, f(x), 2);", {("signal dropped", "return true;")}),
        ("if (puts_.is_full()) return;", {("wait dropped", "if (false) return;")}),
        ("finish(engine_.finished(lane), f);", {("wait dropped", "finish(~u64(0), f);")}),
        (
            "while (at(i).step <= finished) ++i;",
            {
                ("wait dropped", "while (true) ++i;"),
                ("wait one short", "while (at(i).step <= finished + 1) ++i;"),
            },
        ),
        ("return engine_.order_after_last(lane);", {("order dropped", "return true;")}),
    ],
)
def test_rule(tmp_path: Path, code: str, expected: set[tuple[str, str]]) -> None:
    assert edits(tmp_path, code) == expected


@pytest.mark.parametrize(
    "code",
    [
        "// signal<Scope::system>(block, x, 1);",
        '"signal<Scope::system>(block, x, 1);"',
        "#define F(x) \\\n  signal<Scope::system>(block, x, 1);",
        "void signal(Block& block, Flag flag, u64 value) { }",
        "bool peek(u64 position) const { return wait(Order::relaxed, Scope::gpu); }",
    ],
    ids=["comment", "string", "macro", "definition", "nothing"],
)
def test_what_is_no_code_is_left_alone(tmp_path: Path, code: str) -> None:
    assert edits(tmp_path, code) == set()


def test_an_edit_changes_its_place_alone() -> None:
    for mutant in mutants(kernels_dir()):
        text = (kernels_dir() / mutant.file).read_text()
        changed = mutant.apply(text)
        assert changed != text
        assert len(changed) - len(text) == len(mutant.replacement) - len(mutant.original)
        assert text.splitlines()[: mutant.line - 1] == changed.splitlines()[: mutant.line - 1]


def test_every_rule_finds_something() -> None:
    # One that no longer does watches over nothing.
    code = {file: (kernels_dir() / file).read_text() for file in SOURCES}
    idle = [rule for rule in RULES if not any(list(rule.edits(text)) for text in code.values())]
    assert [f"{rule.name}: {rule.pattern}" for rule in idle] == []
