"""The errors Kvist raises, as a tree with one root and few families.

    KvistError
    ├── ConfigError       what the operator gave cannot work: flags, files, models
    │   └── ModelError    a model's files are missing, damaged or of an unsupported kind
    ├── RequestError      what a client sent cannot be honoured
    ├── CapacityError     it could work, but not within the bytes there are
    ├── TierError         a copy of a block could not be read or written
    │   ├── TierUnavailableError  the tier cannot be reached or answers with an error
    │   ├── TierTimeoutError      it did not answer in time
    │   └── TierFullError         its medium has no room
    └── WireError         a peer and we disagree about a protocol

Each message names the offending value and, where there is one, the remedy.
"""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class KvistError(Exception):
    """Root of all errors raised on purpose."""


class ConfigError(KvistError):
    """What the operator gave cannot work."""


class ModelError(ConfigError):
    """A model's files are missing, damaged or of an unsupported kind."""


class RequestError(KvistError):
    """What a client sent cannot be honoured.

    Attributes:
        param: name of the offending request field, or None when no single field is to blame.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class CapacityError(KvistError):
    """It could work, but not within the bytes, blocks or places there are."""


class TierError(KvistError):
    """A copy of a block could not be read or written.

    What a tier's server or library said is often part of the message; characters that a terminal would obey are not.

    Attributes:
        tier: the name of the tier, as configured.
    """

    def __init__(self, message: str, *, tier: str) -> None:
        super().__init__("".join(letter if letter.isprintable() else _REPLACEMENT for letter in f"{tier}: {message}"))
        self.tier = tier


class TierUnavailableError(TierError):
    """The tier cannot be reached, is closed, or answers with an error of its own."""


class TierTimeoutError(TierError):
    """The tier did not answer in time."""


class TierFullError(TierError):
    """The medium has no room: a full disk, a store over its own limit."""


class WireError(KvistError):
    """A peer and we disagree about a protocol."""
