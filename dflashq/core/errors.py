"""Every error that a person can meet, each with the exit code it ends a command with."""

from __future__ import annotations


class DflashqError(Exception):
    """A failure whose message says what happened to what, what was kept, and what to do next."""

    exit_code = 1


class UsageError(DflashqError):
    """What the caller asked for makes no sense; nothing was done."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting is missing or malformed."""


class InputError(DflashqError):
    """A prompt file cannot be used as a whole; nothing was enqueued."""


class SpecMismatchError(DflashqError):
    """A run of this name exists with another spec; the run on record stands.

    `differs` maps each differing field to (on record, asked for).
    """

    def __init__(self, run: str, differs: dict[str, tuple[object, object]]) -> None:
        self.run, self.differs = run, differs
        rows = "; ".join(
            f"{field}: on record {old!r}, asked {new!r}" for field, (old, new) in differs.items()
        )
        super().__init__(
            f"run {run!r} exists with a different spec ({rows}). The run on record is unchanged: "
            "use its spec to continue it, or another --run name."
        )


class UnknownRunError(DflashqError):
    """No run of this name is on record."""


class LedgerError(DflashqError):
    """Redis answered, but not with what the ledger needs."""


class LedgerUnreachableError(LedgerError):
    """Redis did not answer; safe to try again."""


class LedgerRefusedError(LedgerUnreachableError):
    """Redis answered and refused, as it does in a failover or while its disk is full.

    Callers wait and try again, as with a server that does not answer. `words` is what Redis said.
    """

    def __init__(self, sentence: str, words: str = "") -> None:
        self.words = words
        super().__init__(sentence)


class LedgerPasswordError(LedgerRefusedError):
    """Redis refused the password; it may accept it again once a change of password is complete."""


class LeaseLostError(DflashqError):
    """The lease was taken over or its run cancelled: the holder must stop and write nothing."""


class BlobError(DflashqError):
    """S3 refused or did not answer; the object was not confirmed.

    `transient`: it did not answer, or with a server error (5xx); another try may succeed.
    """

    def __init__(self, sentence: str, *, transient: bool = False) -> None:
        self.transient = transient
        super().__init__(sentence)


class BlobMissingError(BlobError):
    """An object that should exist is absent."""


class ConflictError(DflashqError):
    """The commit object at a batch's key is not this run's work."""


class NewerFormatError(DflashqError):
    """A newer version of dflashq wrote this, in a format that this one cannot read."""


class EngineError(DflashqError):
    """The engine cannot do its work."""


class EngineRefusedError(EngineError):
    """The engine refused this one prompt (HTTP 400); it would refuse it again.

    `reason` is the reason word of the verdict that the prompt gets.
    """

    reason = "refused_input"


class EngineRequestError(EngineError):
    """One request failed; only other requests show whether its prompt or the engine is at fault.

    `status` is the HTTP status, None without one; `retry_after_s` is the server's Retry-After in
    seconds, 0 without one.
    """

    def __init__(
        self, sentence: str, *, status: int | None = None, retry_after_s: float = 0.0
    ) -> None:
        self.status, self.retry_after_s = status, retry_after_s
        super().__init__(sentence)


class EngineDownError(EngineError):
    """The engine does not answer at all.

    `delivered`: the request had reached it before.
    """

    def __init__(self, sentence: str, *, delivered: bool = False) -> None:
        self.delivered = delivered
        super().__init__(sentence)


class EngineMismatchError(EngineError):
    """The engine that started is not the one that the profile describes."""


class EngineStartError(EngineError):
    """The engine did not become ready; the message carries the tail of its log."""


class EmbeddedError(DflashqError):
    """A server or environment that dflashq provides on this machine cannot be used."""


def is_panic(exc: BaseException) -> bool:
    """Whether Rust code below a library panicked: pyo3 raises that past `Exception`."""
    return type(exc).__name__ == "PanicException"
