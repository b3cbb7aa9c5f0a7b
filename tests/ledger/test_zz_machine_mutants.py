import json, pytest, hypothesis
from hypothesis.stateful import run_state_machine_as_test
from tests.ledger import test_guards as g, test_machine as m
from tests.ledger.bench import Bench


@pytest.mark.parametrize("n", [1,7,11,18,23,27,28,32,34,39,40,43,45,47,48,49,53])
def test_g(settings, monkeypatch, n):
    s, a, b, _ = g.GUARDS[n]
    g._break(s, a, b, monkeypatch)
    tight = settings.model_copy(
        update={"attempts": m.ATTEMPTS, "keep_budget_mb": m.BUDGET_BYTES / 2**20}
    )
    caught = False
    try:
        run_state_machine_as_test(
            lambda: m.LedgerMachine(tight),
            settings=hypothesis.settings(
                max_examples=80,
                stateful_step_count=50,
                deadline=None,
                database=None,
                suppress_health_check=list(hypothesis.HealthCheck),
                phases=[hypothesis.Phase.generate],
                report_multiple_bugs=False,
            ),
        )
    except BaseException as e:
        caught = type(e).__name__
    open("/tmp/w/mm.jsonl", "a").write(json.dumps([n, s, a, caught]) + "\n")
