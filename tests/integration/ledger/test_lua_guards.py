"""Every guard in the Lua sources earns its place: without it a scenario fails.

That the same scenarios pass with all guards is shown in test_verbs.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from dflashq.config import Settings
from dflashq.core.errors import DflashqError
from dflashq.ledger import scripts
from tests.integration.ledger import scenarios
from tests.integration.ledger.scenarios import Scenario
from tests.support.ledger_fixture import LedgerFixture

VERBS = """
    add adopt announce begin claim complete disown expire fail forget keep kill pause_at_canary
    register release release_canary renew retire revive state
""".split()  # noqa: SIM905

PRELUDE_ENDS = "return 'pending'\nend\n"

# script ('*': the prelude of all), the guard as it stands, what stands there without it, and the
# scenario that must miss it
GUARDS: list[tuple[str, str, str, Scenario]] = [
    (
        "claim",
        "if canary and canary ~= '' then",
        "if false then",
        scenarios.the_others_wait_for_the_canary,
    ),
    (
        "claim",
        "if not redis.call('ZSCORE', PENDING, canary) then return { 'none', 'canary' } end",
        "if not redis.call('ZSCORE', PENDING, canary) then canary = batch end",
        scenarios.the_others_wait_for_the_canary,
    ),
    (
        "pause_at_canary",
        "redis.call('HGET', RUN, 'state') ~= 'active' or ",
        "",
        scenarios.a_run_is_paused_only_where_its_canary_was_seen,
    ),
    (
        "pause_at_canary",
        "not canary or ",
        "",
        scenarios.a_run_without_a_canary_is_not_paused_at_it,
    ),
    (
        "pause_at_canary",
        " or canary == ''",
        "",
        scenarios.a_run_is_paused_only_where_its_canary_was_seen,
    ),
    (
        "pause_at_canary",
        "redis.call('ZSCORE', PENDING, canary) or ",
        "",
        scenarios.a_run_is_paused_only_where_its_canary_was_seen,
    ),
    (
        "pause_at_canary",
        " or redis.call('ZSCORE', LEASED, canary)",
        "",
        scenarios.a_run_is_paused_only_where_its_canary_was_seen,
    ),
    (
        "pause_at_canary",
        "if redis.call('HEXISTS', DONE, canary) == 1 then place = 'done' end",
        "",
        scenarios.a_run_is_paused_only_where_its_canary_was_seen,
    ),
    (
        "pause_at_canary",
        "if redis.call('HEXISTS', DEAD, canary) == 1 then place = 'dead' end",
        "",
        scenarios.a_run_is_paused_only_where_its_canary_was_seen,
    ),
    (
        "pause_at_canary",
        "if place ~= ARGV[1] then return 0 end",
        "",
        scenarios.a_run_is_paused_only_where_its_canary_was_seen,
    ),
    (
        "revive",
        "if #ARGV == 1 or asked[batch] then",
        "if true then",
        scenarios.revive_takes_only_those_asked_for,
    ),
    (
        "release_canary",
        "redis.call('EXISTS', RUN) == 0",
        "false",
        scenarios.a_canary_of_nothing_makes_no_run,
    ),
    (
        "release_canary",
        "if ARGV[1] ~= '' then",
        "if true then",
        scenarios.the_others_wait_for_the_canary,
    ),
    (
        "claim",
        "if ARGV[5] == '1' then",
        "if false then",
        scenarios.claim_of_one_batch_only_takes_no_other,
    ),
    (
        "claim",
        "redis.call('HEXISTS', DONE, batch) == 1",
        "false",
        scenarios.claim_of_one_batch_only_takes_no_other,
    ),
    (
        "forget",
        "redis.call('HGET', DONE, batch) ~= ARGV[2]",
        "not redis.call('HGET', DONE, batch)",
        scenarios.forget_takes_back_what_is_done_with_that_object,
    ),
    (
        "forget",
        "if redis.call('HGET', DONE, batch) ~= ARGV[2] then return 0 end",
        "",
        scenarios.forget_takes_back_what_is_done_with_that_object,
    ),
    (
        "forget",
        "redis.call('HDEL', DONE, batch)",
        "",
        scenarios.forget_takes_back_what_is_done_with_that_object,
    ),
    (
        "forget",
        "-tonumber(",
        "tonumber(",
        scenarios.forget_takes_back_what_is_done_with_that_object,
    ),
    (
        "add",
        "redis.call('HEXISTS', DONE, batch) == 0 and ",
        "",
        scenarios.add_touches_no_batch_that_is_known,
    ),
    (
        "add",
        "redis.call('HEXISTS', DEAD, batch) == 0",
        "true",
        scenarios.add_touches_no_batch_that_is_known,
    ),
    (
        "add",
        "and not redis.call('ZSCORE', LEASED, batch)",
        "",
        scenarios.add_touches_no_batch_that_is_known,
    ),
    (
        "adopt",
        "redis.call('HEXISTS', DONE, batch) == 1 or ",
        "",
        scenarios.adopt_enters_what_nobody_works_on,
    ),
    (
        "adopt",
        " or redis.call('ZSCORE', LEASED, batch)",
        "",
        scenarios.adopt_enters_what_nobody_works_on,
    ),
    (
        "adopt",
        "redis.call('ZREM', PENDING, batch)",
        "",
        scenarios.adopt_enters_what_nobody_works_on,
    ),
    ("adopt", "redis.call('HDEL', DEAD, batch)", "", scenarios.adopt_enters_what_nobody_works_on),
    ("adopt", "drop_kept(batch)", "", scenarios.adopt_enters_what_nobody_works_on),
    (
        "begin",
        "if not holds(batch, fence) then return 0 end",
        "",
        scenarios.a_zombie_is_refused_by_every_verb,
    ),
    (
        "begin",
        "redis.call('HGET', LEASES, batch .. ':begun') ~= fence",
        "true",
        scenarios.begin_counts_an_attempt_once,
    ),
    (
        "claim",
        "string.sub(fence, -#nonce) == nonce",
        "false",
        scenarios.claim_answers_the_same_nonce_alike,
    ),
    (
        "claim",
        "redis.call('ZADD', LEASED, now_ms() + ttl, held)",
        "",
        scenarios.claim_answers_the_same_nonce_alike,
    ),
    (
        "claim",
        "if not state then return { 'none', 'unknown' } end",
        "state = state or 'active'",
        scenarios.a_run_that_is_unknown_stays_so,
    ),
    (
        "claim",
        "if state ~= 'active' then return { 'none', state } end",
        "",
        scenarios.claim_gives_nothing_of_a_run_that_is_not_active,
    ),
    (
        "claim",
        "batch == '' or not redis.call('ZSCORE', PENDING, batch)",
        "batch == ''",
        scenarios.claim_gives_the_named_batch_else_the_oldest,
    ),
    ("claim", "redis.call('HINCRBY', RUN, 'fence', 1)", "'1'", scenarios.fences_never_repeat),
    ("claim", "redis.call('ZREM', PENDING, batch)", "", scenarios.pending_is_oldest_first),
    ("claim", "now_ms() + ttl, batch)", "now_ms(), batch)", scenarios.claim_lasts_a_ttl),
    (
        "complete",
        "if known == ref then",
        "if true then",
        scenarios.complete_never_changes_what_is_done,
    ),
    (
        "complete",
        "if known == ref then return 'already' end",
        "",
        scenarios.what_ended_cannot_be_ended_again,
    ),
    ("complete", "if known then", "if false then", scenarios.what_ended_cannot_be_ended_again),
    (
        "complete",
        "if not holds(batch, fence) then return 'fenced' end",
        "",
        scenarios.a_zombie_is_refused_by_every_verb,
    ),
    ("complete", "unlease(batch)", "", scenarios.what_ended_cannot_be_ended_again),
    ("complete", "drop_kept(batch)", "", scenarios.keep_is_full_as_a_whole),
    (
        "disown",
        "redis.call('HGET', LEASES, batch .. ':worker') == ARGV[1]",
        "true",
        scenarios.disown_takes_only_what_an_earlier_boot_here_let_run_out,
    ),
    (
        "disown",
        "its_host == host",
        "its_host",
        scenarios.disown_takes_only_what_an_earlier_boot_here_let_run_out,
    ),
    (
        "disown",
        "its_start < started",
        "true",
        scenarios.disown_takes_only_what_an_earlier_boot_here_let_run_out,
    ),
    (
        "disown",
        "its_start < started",
        "its_start <= started",
        scenarios.disown_takes_only_what_an_earlier_boot_here_let_run_out,
    ),
    (
        "disown",
        "now_ms()",
        "'+inf'",
        scenarios.disown_takes_only_what_an_earlier_boot_here_let_run_out,
    ),
    (
        "announce",
        "its ~= boot and (",
        "(",
        scenarios.a_name_is_that_of_one_boot,
    ),
    (
        "announce",
        "(its == '' or its ~= ARGV[5])",
        "true",
        scenarios.a_name_is_that_of_one_boot,
    ),
    (
        "announce",
        "its == '' or ",
        "",
        scenarios.a_row_without_a_boot_is_not_known_to_be_gone,
    ),
    (
        "announce",
        "now_ms() - last.seen_ms < tonumber(ARGV[3])",
        "true",
        scenarios.a_name_is_that_of_one_boot,
    ),
    (
        "announce",
        "now_ms() - last.seen_ms < tonumber(ARGV[3])",
        "false",
        scenarios.a_name_is_that_of_one_boot,
    ),
    (
        "announce",
        "if not known or its ~= boot then return 1 end",
        "if not known then return 1 end",
        scenarios.a_name_is_that_of_one_boot,
    ),
    (
        "announce",
        "if not known or its ~= boot then return 1 end",
        "known = known or '{\"seen_ms\":1,}'",
        scenarios.a_name_is_that_of_one_boot,
    ),
    (
        "retire",
        "(cjson.decode(known).boot or '') ~= ARGV[2]",
        "false",
        scenarios.a_name_is_that_of_one_boot,
    ),
    (
        "claim",
        "batch .. ':boot', ARGV[6]",
        "batch .. ':boot', ''",
        scenarios.a_lease_says_whose_boot_holds_it_and_no_more_than_that,
    ),
    ("expire", "now_ms()", "'+inf'", scenarios.renew_extends_what_is_ours),
    (
        "fail",
        "if not holds(batch, fence) then return 'fenced' end",
        "",
        scenarios.a_zombie_is_refused_by_every_verb,
    ),
    (
        "fail",
        "redis.call('HGET', LEASES, batch .. ':begun') ~= fence",
        "false",
        scenarios.a_failure_before_begin_is_an_attempt_too,
    ),
    (
        "fail",
        "redis.call('HGET', LEASES, batch .. ':begun') ~= fence",
        "true",
        scenarios.attempts_without_progress_end_in_death,
    ),
    (
        "keep",
        "if not holds(batch, fence) then return 'fenced' end",
        "",
        scenarios.a_zombie_is_refused_by_every_verb,
    ),
    (
        "keep",
        "redis.call('HEXISTS', kept, ARGV[i]) == 0",
        "true",
        scenarios.keep_keeps_what_came_first,
    ),
    ("keep", "+ bytes > budget", "> budget", scenarios.keep_is_full_as_a_whole),
    ("keep", "then return 'full' end", "then return 'kept' end", scenarios.keep_is_full_as_a_whole),
    ("keep", "redis.call('HINCRBY', kept, 'bytes', bytes)", "", scenarios.keep_is_full_as_a_whole),
    (
        "keep",
        "redis.call('HDEL', ATTEMPTS, batch .. ':spent')",
        "",
        scenarios.an_attempt_that_kept_something_is_not_spent,
    ),
    (
        "kill",
        "if not holds(batch, fence) then return 0 end",
        "",
        scenarios.a_zombie_is_refused_by_every_verb,
    ),
    ("kill", "unlease(batch)", "", scenarios.what_ended_cannot_be_ended_again),
    ("register", "if known then return known end", "", scenarios.register_tells_what_is_on_record),
    (
        "release",
        "if not holds(batch, fence) then return 0 end",
        "",
        scenarios.a_zombie_is_refused_by_every_verb,
    ),
    (
        "release",
        "redis.call('HGET', LEASES, batch .. ':begun') == fence\n  and ",
        "",
        scenarios.release_spends_nothing,
    ),
    (
        "release",
        "redis.call('HINCRBY', ATTEMPTS, batch .. ':spent', -1)",
        "",
        scenarios.release_spends_nothing,
    ),
    ("release", "unlease(batch)", "", scenarios.what_ended_cannot_be_ended_again),
    (
        "renew",
        "if holds(ARGV[i], ARGV[i + 1]) then",
        "if true then",
        scenarios.a_zombie_is_refused_by_every_verb,
    ),
    (
        "renew",
        "redis.call('ZADD', LEASED, ends, ARGV[i])",
        "",
        scenarios.renew_extends_what_is_ours,
    ),
    (
        "revive",
        "redis.call('HDEL', DEAD, batch)",
        "",
        scenarios.kept_work_outlives_every_end_of_a_lease,
    ),
    (
        "revive",
        "redis.call('HDEL', ATTEMPTS, batch .. ':spent')",
        "",
        scenarios.kill_is_death_at_once_and_revive_gives_all_attempts,
    ),
    (
        "state",
        "if not state then return 'unknown' end",
        "",
        scenarios.a_run_that_is_unknown_stays_so,
    ),
    (
        "state",
        "if state == 'cancelled' then return state end",
        "",
        scenarios.cancel_is_for_good_and_drops_kept_work,
    ),
    (
        "state",
        "redis.call('ZRANGE', PENDING, 0, -1)",
        "{}",
        scenarios.cancel_is_for_good_and_drops_kept_work,
    ),
    ("state", "redis.call('HKEYS', DEAD)", "{}", scenarios.cancel_is_for_good_and_drops_kept_work),
    ("*", "if schema and", "if false and", scenarios.a_run_of_a_newer_format_is_left_alone),
    ("*", " or math.huge", " or 0", scenarios.a_run_of_a_newer_format_is_left_alone),
    (
        "*",
        "redis.call('HGET', LEASES, batch) == fence",
        "redis.call('HEXISTS', LEASES, batch) == 1",
        scenarios.a_zombie_is_refused_by_every_verb,
    ),
    (
        "*",
        "'HDEL', LEASES, batch, ",
        "'HDEL', LEASES, ",
        scenarios.a_zombie_is_refused_by_every_verb,
    ),
    ("*", ", batch .. ':begun')\n  if", ")\n  if", scenarios.what_ended_cannot_be_ended_again),
    (
        "*",
        "batch .. ':boot', batch .. ':begun')",
        "batch .. ':begun')",
        scenarios.a_lease_says_whose_boot_holds_it_and_no_more_than_that,
    ),
    (
        "*",
        "if redis.call('HGET', RUN, 'state') == 'cancelled' then drop_kept(batch) end",
        "",
        scenarios.every_end_of_a_lease_drops_the_kept_work_of_a_cancelled_run,
    ),
    (
        "*",
        "redis.call('HINCRBY', RUN, 'kept_bytes', -bytes)",
        "",
        scenarios.keep_is_full_as_a_whole,
    ),
    ("*", "redis.call('DEL', kept_key(batch)) == 1", "true", scenarios.complete_is_the_ack),
    (
        "*",
        ">= tonumber(limit)",
        "> tonumber(limit)",
        scenarios.attempts_without_progress_end_in_death,
    ),
    ("*", "while #story > 20 do table.remove(story, 1) end", "", scenarios.a_story_keeps_its_end),
    ("*", " + (tonumber(revision) or 0) / 1000", "", scenarios.pending_is_oldest_first),
]


def _break(script: str, guard: str, without: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Take one guard out of a script ('*': out of the prelude of all); returns the sources."""
    names = VERBS if script == "*" else [script]
    broken: dict[str, str] = {}
    for name in names:
        prelude, mark, body = scripts.source(name).partition(PRELUDE_ENDS)
        assert mark, "the prelude ends otherwise now"
        text = prelude if script == "*" else body
        assert text.count(guard) == 1, f"{script}.lua has {text.count(guard)} of {guard!r}"
        text = text.replace(guard, without)
        broken[name] = text + mark + body if script == "*" else prelude + mark + text
    source, sha1 = scripts.source, scripts.sha1

    def broken_sha1(name: str) -> str:
        if name not in broken:
            return sha1(name)
        return hashlib.sha1(broken[name].encode(), usedforsecurity=False).hexdigest()

    monkeypatch.setattr(scripts, "source", lambda name: broken.get(name) or source(name))
    monkeypatch.setattr(scripts, "sha1", broken_sha1)
    return list(broken.values())


@pytest.mark.parametrize(
    ("script", "guard", "without", "scenario"),
    GUARDS,
    ids=[f"{script}:{number}" for number, (script, *_) in enumerate(GUARDS)],
)
def test_without_a_guard_a_scenario_fails(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    guard: str,
    without: str,
    scenario: Scenario,
) -> None:
    broken = LedgerFixture(settings)
    for text in _break(script, guard, without, monkeypatch):
        broken.raw.script_load(text)  # it must still compile
    with pytest.raises((AssertionError, DflashqError, pytest.fail.Exception)):
        scenario(broken)


def test_every_script_is_guarded(repository: Path) -> None:
    scripts_there = {path.stem for path in (repository / "dflashq/ledger/lua").glob("*.lua")}
    assert scripts_there == {"prelude", *VERBS}
    assert {script for script, *_ in GUARDS} == {"*", *VERBS}
