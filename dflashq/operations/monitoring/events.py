"""What happened, in plain sentences: the difference between two snapshots of a run or the fleet.

Pure functions. `at_ms` is always in milliseconds of Redis' clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dflashq.core.humanize import counted
from dflashq.core.states import BatchState, RunState
from dflashq.operations.monitoring.worker_view import SILENT_S

Event = dict[str, Any]
Snapshot = dict[str, Any]
LISTED_AT_MOST = 3


def event(at_ms: int, kind: str, text: str, actor: str = "", **more: Any) -> Event:
    """One line of the feed; `actor` is the person who did it, if it was one."""
    row: Event = {"at": at_ms, "kind": kind, "text": text, **more}
    return row | ({"who": actor} if actor else {})


def run_snapshot(
    state: str, reason: str, waits_for: str, finished: bool, batches: Mapping[str, str]
) -> Snapshot:
    """What the events of a run are derived from: its state, and its batches that were begun."""
    unbegun = (BatchState.PENDING, BatchState.WAITING)
    begun = {name: state for name, state in batches.items() if state not in unbegun}
    return {
        "state": state,
        "reason": reason,
        "waits_for": waits_for,
        "finished": finished,
        "batches": begun,
    }


def run_events(
    run: str, before: Snapshot | None, now: Snapshot, at_ms: int, dead: Mapping[str, str]
) -> list[Event]:
    """What happened to a run between two snapshots; `dead` maps dead batches to their reason.

    Without a snapshot `before`, one event says that the run is watched from now on.
    """
    if before is None:
        done = sum(1 for state in now["batches"].values() if state == BatchState.DONE)
        text = f"The monitor sees run {run} for the first time: {counted(done, 'batch')} done."
        return [event(at_ms, "watched", text)]
    events = _batch_events(before["batches"], now["batches"], at_ms, dead)
    if (canary := before["waits_for"]) and not now["waits_for"]:
        events.append(_canary_left(canary, at_ms, is_dead=canary in dead))
    events += _state_events(before, now, at_ms)
    if now["finished"] and not before["finished"] and now["state"] != RunState.CANCELLED:
        but = f", but {counted(len(dead), 'batch')} dead" if dead else ""
        text = f"Nothing is left to do in run {run}{but}."
        events.append(event(at_ms, "run_finished", text))
    return events


def _canary_left(canary: str, at_ms: int, *, is_dead: bool) -> Event:
    if is_dead:
        text = f"The run goes on without its canary ({canary}), which is dead."
        return event(at_ms, "canary_skipped", text)
    text = "The canary has passed or was accepted; the other batches may go."
    return event(at_ms, "canary_passed", text)


def _state_events(before: Snapshot, now: Snapshot, at_ms: int) -> list[Event]:
    if before["state"] == now["state"]:
        return []
    why = f": {now['reason']}" if now["reason"] else "."
    sentences: dict[str, tuple[str, str]] = {
        RunState.PAUSED: ("run_paused", f"The run is paused{why}"),
        RunState.CANCELLED: ("run_cancelled", f"The run is cancelled for good{why}"),
        RunState.ACTIVE: ("run_resumed", "The run goes on."),
    }
    kind, text = sentences.get(now["state"], ("run_state", f"The run is {now['state']}{why}"))
    return [event(at_ms, kind, text, state=now["state"])]


def _batch_events(
    before: Mapping[str, str], now: Mapping[str, str], at_ms: int, dead: Mapping[str, str]
) -> list[Event]:
    changed: dict[tuple[str, str], list[str]] = {}
    for name in before.keys() | now.keys():
        old = before.get(name, BatchState.PENDING)
        new = now.get(name, BatchState.PENDING)
        if old != new:
            changed.setdefault((old, new), []).append(name)
    events: list[Event] = []
    done = [n for (_, new), names in changed.items() if new == BatchState.DONE for n in names]
    events += _batches_event(done, at_ms, "batch_done", "is done and on S3", "are done and on S3")
    died = [n for (_, new), names in changed.items() if new == BatchState.DEAD for n in names]
    for name in sorted(died):
        text = f"{name} is dead: {dead.get(name, '')}"
        events.append(event(at_ms, "batch_dead", text, batch=name))
    revived = [n for (old, _), names in changed.items() if old == BatchState.DEAD for n in names]
    back_to_work = ("was put back to work", "were put back to work")
    events += _batches_event(revived, at_ms, "batch_revived", *back_to_work)
    returned = changed.get((BatchState.LEASED, BatchState.PENDING), [])
    unfinished = "went back to the queue unfinished"
    events += _batches_event(returned, at_ms, "batch_returned", unfinished, unfinished)
    return events


def _batches_event(
    names: Iterable[str], at_ms: int, kind: str, singular: str, plural: str
) -> list[Event]:
    """An event for each batch, or one for all where they are many."""
    batches = sorted(names)
    if len(batches) <= LISTED_AT_MOST:
        return [event(at_ms, kind, f"{name} {singular}.", batch=name) for name in batches]
    text = f"{counted(len(batches), 'batch')} {plural}: {batches[0]} to {batches[-1]}."
    return [event(at_ms, kind, text)]


def fleet_snapshot(workers: Mapping[str, Mapping[str, Any]]) -> Snapshot:
    """What the events of the fleet are derived from; `workers` are the rows they announced."""
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


def fleet_events(before: Snapshot | None, now: Snapshot, at_ms: int) -> list[Event]:
    """Workers that came, fell silent, came back or left; engines that went down or restarted."""
    if before is None:
        return []
    events: list[Event] = []
    for name in sorted(before.keys() | now.keys()):
        events += [
            event(at_ms, kind, text, worker=name)
            for kind, text in _worker_events(name, before.get(name), now.get(name))
        ]
    return _shortened(events, at_ms)


def _worker_events(name: str, old: Snapshot | None, new: Snapshot | None) -> list[tuple[str, str]]:
    if old is None:
        return [("worker_joined", f"Worker {name} joined.")] if new and new["alive"] else []
    if new is None:
        return [("worker_left", f"Worker {name} ended in order.")]
    if old["alive"] and not new["alive"]:
        return [("worker_silent", f"Worker {name} is silent: its batches go to others.")]
    if old.get("boot") != new.get("boot"):
        return [("worker_back", f"Worker {name} was started anew.")]
    events = []
    if not old["alive"] and new["alive"]:
        events.append(("worker_back", f"Worker {name} is back."))
    if new["restarts"] > old["restarts"]:
        events.append(("engine_restarted", f"The engine of {name} was restarted."))
    elif old["engine"] == "ready" and new["engine"] in ("down", "failed"):
        events.append(("engine_down", f"The engine of {name} is {new['engine']}."))
    return events


def _shortened(events: Sequence[Event], at_ms: int) -> list[Event]:
    """Many events of one kind become one: five hundred workers may start at once."""
    short: list[Event] = []
    by_kind: dict[str, list[Event]] = {}
    for each in events:
        by_kind.setdefault(each["kind"], []).append(each)
    words = {
        "worker_joined": "joined",
        "worker_left": "ended in order",
        "worker_silent": "are silent: their batches go to others",
        "worker_back": "are back",
        "engine_restarted": "have restarted their engines",
        "engine_down": "have no engine now",
    }
    for kind, alike in by_kind.items():
        if len(alike) <= LISTED_AT_MOST:
            short += alike
        else:
            ends = f"{alike[0]['worker']} to {alike[-1]['worker']}"
            text = f"{counted(len(alike), 'worker')} {words[kind]}: {ends}."
            short.append(event(at_ms, kind, text))
    return short
