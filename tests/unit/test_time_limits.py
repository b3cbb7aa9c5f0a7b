"""No test depends on the speed of the machine: the harness alone bounds what it waits for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "getrusage"}
WAITS = {"wait_until", "until"}
# These measure, or go on for as long as a person says.
APART = ("acceptance", "bench", "browser")
REMEDY = "wait with tests.support.wait.wait_until and WAIT_S, and assert what was counted"


def sources(repository: Path) -> Iterator[Path]:
    tests = repository / "tests"
    for path in sorted(tests.rglob("test_*.py")):
        if path.relative_to(tests).parts[0] not in APART:
            yield path


def called(node: ast.expr) -> str:
    """The last name of what a call calls."""
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def is_measured(node: ast.AST) -> bool:
    """Whether this demands that measured time is short. Long is safe: no machine is too slow."""
    return (
        isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.Lt | ast.LtE)
        and any(called(part) in CLOCKS for part in ast.walk(node.left))
    )


def is_limited(call: ast.Call) -> bool:
    """Whether this call waits for so many seconds as the test says."""
    limits = [k.value for k in call.keywords if k.arg in ("timeout", "timeout_s")]
    if called(call) in WAITS:
        return bool(limits) or len(call.args) > 2
    if called(call) in ("wait", "wait_for"):
        limits += call.args
    return any(is_number(limit) and limit.value >= 1 for limit in limits)


def faults(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and reason of every bound that a test chose for itself."""
    for node in ast.walk(tree):
        if is_measured(node):
            yield node.lineno, "an upper bound on measured time"
        elif isinstance(node, ast.Call) and is_limited(node):
            yield node.lineno, "a time limit in seconds"


def test_no_test_has_a_time_limit_of_its_own(repository: Path) -> None:
    wrong = [
        f"{path.relative_to(repository)}:{line}: {why}"
        for path in sources(repository)
        for line, why in faults(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not wrong, f"{wrong}: {REMEDY}"


@pytest.mark.parametrize(
    "line",
    [
        "assert time.monotonic() - begun < 5",
        "wait_until(lambda: done, 'it is done', 20)",
        "wait_until(lambda: done, timeout_s=20)",
        "process.wait(10)",
        "requests.get(url, timeout=5)",
    ],
)
def test_each_such_limit_is_seen(line: str) -> None:
    assert list(faults(ast.parse(line)))


def test_hypothesis_has_no_deadline_and_no_health_checks() -> None:
    ours = hypothesis.settings.default
    assert ours.deadline is None
    assert set(ours.suppress_health_check) == set(hypothesis.HealthCheck)
    assert ours.print_blob
