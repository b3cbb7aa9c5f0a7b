"""A Redis that answers and refuses: which refusals pass, and what Redis said."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

import redis


class Need(IntEnum):
    """What a call asks of Redis, in this order: whoever is served with one is with those before."""

    ANSWER = 0
    WRITE = 1  # also of a full Redis
    ROOM = 2


# Codes of refusals that end by themselves or by somebody's hand on Redis, each with the least need
# that it refuses: a replica still reads, a full Redis still takes the writes that make room.
PASSING = {
    "BUSY": Need.ANSWER,
    "CLUSTERDOWN": Need.ANSWER,
    "EXECABORT": Need.ANSWER,
    "LOADING": Need.ANSWER,
    "MASTERDOWN": Need.ANSWER,
    "NOAUTH": Need.ANSWER,
    "TRYAGAIN": Need.ANSWER,
    "WRONGPASS": Need.ANSWER,
    "MISCONF": Need.WRITE,
    "NOREPLICAS": Need.WRITE,
    "READONLY": Need.WRITE,
    "UNBLOCKED": Need.WRITE,  # whoever blocked when its master became a replica
    "OOM": Need.ROOM,
}
PASSWORD = frozenset({"NOAUTH", "WRONGPASS"})
# Sentences under Redis' general code ERR, each with the code that it would deserve.
_UNCODED = {
    "max number of clients": "MAXCLIENTS",
    "Script killed by user": "KILLED",
    "invalid password": "WRONGPASS",
}
# Where a pipeline says which of its commands failed, it quotes their arguments.
_QUOTED = "of pipeline caused error: "
_CODE = re.compile(r"^-?([A-Z]{2,})\b")
_IN_SCRIPT = re.compile(r"(?:^|\s)-(" + "|".join(PASSING) + r")\b")


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer of Redis that is no result; `words` is what it said, without arguments of ours.

    `passes`: the same call may be answered later. `need` is the least that is refused.
    """

    code: str
    words: str
    passes: bool
    need: Need = Need.ANSWER


def refusal_of(exc: redis.RedisError) -> Refusal | None:
    """What Redis answered instead of a result; None for an error that is no answer of Redis."""
    text = str(exc).rpartition(_QUOTED)[2]
    said = exc.status_code or ((found := _CODE.match(text)) and found[1]) or ""
    code = said if said in PASSING else _code_inside(text) or said
    if isinstance(exc, redis.AuthenticationError) and code not in PASSWORD:
        code = "WRONGPASS"
    passes = code in PASSING or code in _UNCODED.values()
    if not passes and not isinstance(exc, redis.ResponseError):
        return None
    words = f"{said} {text}" if said and not text.startswith(said) else text
    return Refusal(code, words, passes, PASSING.get(code, Need.ANSWER))


def passes(exc: Exception) -> bool:
    """Whether the same call may be answered later, though Redis refused it now."""
    refusal = refusal_of(exc) if isinstance(exc, redis.RedisError) else None
    return refusal is not None and refusal.passes


def _code_inside(text: str) -> str:
    """The code of a sentence under `ERR`, or of the command that failed in a script."""
    found = _IN_SCRIPT.search(text)
    return found[1] if found else next((c for words, c in _UNCODED.items() if words in text), "")
