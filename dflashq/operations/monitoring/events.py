"""What happened, in plain sentences: the difference between two looks at a run or at the fleet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dflashq.core.humanize import counted

Event = dict[str, Any]
Seen = dict[str, Any]
TOLD_ONE_BY_ONE = 3
SILENT_S = 30


def event(at_ms: int, kind: str, text: str, who: str = "", **more: Any) -> Event:
    """One line of the feed; `who` only where a person did it."""
    found: Event = {"at": at_ms, "kind": kind, "text": text, **more}
    return found | ({"who": who} if who else {})


def seen_of_run(
    state: str, reason: str, waits_for: str, finished: bool, batches: Mapping[str, str]
) -> Seen:
    """What to remember of a run: its state, and every batch that is more than pending."""
    marked = {name: state for name, state in batches.items() if state not in ("pending", "waiting")}
    return {
        "state": state,
        "reason": reason,
        "waits_for": waits_for,
        "finished": finished,
        "batches": marked,
    }


def run_events(
    run: str, before: Seen | None, now: Seen, at_ms: int, dead: Mapping[str, str]
) -> list[Event]:
    """What happened to a run between two looks; `dead` maps dead batches to their reason."""
    if before is None:
        done = sum(1 for state in now["batches"].values() if state == "done")
        text = f"The monitor sees run {run} for the first time: {counted(done, 'batch')} done."
        return [event(at_ms, "watched", text)]
    told = _batch_events(before["batches"], now["batches"], at_ms, dead)
    if (canary := before["waits_for"]) and not now["waits_for"]:
        told.append(_canary_left(canary, at_ms, is_dead=canary in dead))
    told += _state_events(before, now, at_ms)
    if now["finished"] and not before["finished"] and now["state"] != "cancelled":
        left = len(dead)
        but = f", but {counted(left, 'batch')} dead" if left else ""
        told.append(event(at_ms, "run_finished", f"Nothing is left to do in run {run}{but}."))
    return told


def _canary_left(canary: str, at_ms: int, *, is_dead: bool) -> Event:
    if is_dead:
        text = f"The run goes on without its canary ({canary}), which is dead."
        return event(at_ms, "canary_skipped", text)
    text = "The canary has passed or was accepted; the other batches may go."
    return event(at_ms, "canary_passed", text)


def _state_events(before: Seen, now: Seen, at_ms: int) -> list[Event]:
    if before["state"] == now["state"]:
        return []
    why = f": {now['reason']}" if now["reason"] else "."
    sentences = {
        "paused": ("run_paused", f"The run is paused{why}"),
        "cancelled": ("run_cancelled", f"The run is cancelled for good{why}"),
        "active": ("run_resumed", "The run goes on."),
    }
    kind, text = sentences.get(now["state"], ("run_state", f"The run is {now['state']}{why}"))
    return [event(at_ms, kind, text, state=now["state"])]


def _batch_events(
    before: Mapping[str, str], now: Mapping[str, str], at_ms: int, dead: Mapping[str, str]
) -> list[Event]:
    changed: dict[tuple[str, str], list[str]] = {}
    for name in before.keys() | now.keys():
        old, new = before.get(name, "pending"), now.get(name, "pending")
        if old != new:
            changed.setdefault((old, new), []).append(name)
    told: list[Event] = []
    done = [n for (_, new), names in changed.items() if new == "done" for n in names]
    told += _about(done, at_ms, "batch_done", "is done and on S3", "are done and on S3")
    for name in sorted(n for (_, new), names in changed.items() if new == "dead" for n in names):
        told.append(event(at_ms, "batch_dead", f"{name} is dead: {dead.get(name, '')}", batch=name))
    revived = [n for (old, _), names in changed.items() if old == "dead" for n in names]
    told += _about(revived, at_ms, "batch_revived", "was put back to work", "were put back to work")
    back = changed.get(("leased", "pending"), [])
    told += _about(
        back,
        at_ms,
        "batch_returned",
        "went back to the queue unfinished",
        "went back to the queue unfinished",
    )
    return told


def _about(names: Iterable[str], at_ms: int, kind: str, one: str, many: str) -> list[Event]:
    chosen = sorted(names)
    if len(chosen) <= TOLD_ONE_BY_ONE:
        return [event(at_ms, kind, f"{name} {one}.", batch=name) for name in chosen]
    text = f"{counted(len(chosen), 'batch')} {many}: {chosen[0]} to {chosen[-1]}."
    return [event(at_ms, kind, text)]


def seen_of_fleet(workers: Mapping[str, Mapping[str, Any]]) -> Seen:
    """What to remember of the workers."""
    return {
        name: {
            "boot": row.get("boot"),
            "alive": int(row["silent_s"]) <= SILENT_S,
            "engine": str(row.get("engine", "")),
            "restarts": int(row.get("restarts", 0) or 0),
            "closed": sorted(map(str, row.get("closed", ()))),
        }
        for name, row in workers.items()
    }


def fleet_events(before: Seen | None, now: Seen, at_ms: int) -> list[Event]:
    """Workers that came, fell silent, came back or left; engines that fell or came up."""
    if before is None:
        return []
    told: list[Event] = []
    for name in sorted(before.keys() | now.keys()):
        told += [
            event(at_ms, kind, text, worker=name)
            for kind, text in _worker_events(name, before.get(name), now.get(name))
        ]
    return _shortened(told, at_ms)


def _worker_events(name: str, old: Seen | None, new: Seen | None) -> list[tuple[str, str]]:
    if old is None:
        return [("worker_joined", f"Worker {name} joined.")] if new and new["alive"] else []
    if new is None:
        return [("worker_left", f"Worker {name} ended in order.")]
    if old["alive"] and not new["alive"]:
        return [("worker_silent", f"Worker {name} is silent: its batches go to others.")]
    if old.get("boot") != new.get("boot"):
        return [("worker_back", f"Worker {name} was started anew.")]
    told = []
    if not old["alive"] and new["alive"]:
        told.append(("worker_back", f"Worker {name} is back."))
    if new["restarts"] > old["restarts"]:
        told.append(("engine_restarted", f"The engine of {name} was restarted."))
    elif old["engine"] == "ready" and new["engine"] in ("down", "failed"):
        told.append(("engine_down", f"The engine of {name} is {new['engine']}."))
    return told


def _shortened(events: Sequence[Event], at_ms: int) -> list[Event]:
    """A fleet that starts at once is one line, not five hundred."""
    kept: list[Event] = []
    by_kind: dict[str, list[Event]] = {}
    for one in events:
        by_kind.setdefault(one["kind"], []).append(one)
    words = {
        "worker_joined": "joined",
        "worker_left": "ended in order",
        "worker_silent": "are silent: their batches go to others",
        "worker_back": "are back",
        "engine_restarted": "have restarted their engines",
        "engine_down": "have no engine now",
    }
    for kind, found in by_kind.items():
        if len(found) <= TOLD_ONE_BY_ONE:
            kept += found
        else:
            ends = f"{found[0]['worker']} to {found[-1]['worker']}"
            text = f"{counted(len(found), 'worker')} {words[kind]}: {ends}."
            kept.append(event(at_ms, kind, text))
    return kept
