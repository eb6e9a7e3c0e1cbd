import pytest

from mkbench.core import errors


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("CheckFailed", 1),
        ("UsageError", 2),
        ("EnvironmentProblem", 3),
        ("HangError", 4),
        ("WrongResult", 5),
        ("Regression", 6),
        ("PartialResults", 7),
    ],
)
def test_each_failure_has_its_exit_code_and_text(name: str, code: int) -> None:
    error = getattr(errors, name)("what failed", hint="what to do")
    assert isinstance(error, errors.MkbenchError)
    assert (error.exit_code, str(error), error.hint) == (code, "what failed", "what to do")
