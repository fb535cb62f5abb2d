"""The error tree.

    OmniError
    ├── CheckpointError   a config, tokenizer or weight file is missing, damaged or refused
    ├── BudgetError       the cache budget cannot hold what must stay, or the machine cannot hold it
    ├── MediaError        a clip, camera or microphone cannot be read
    ├── BackendError      a backend is absent or failed
    ├── PlanError         a plan contradicts the state it is applied to
    └── RecordingError    a recording or saved session is missing, damaged or from elsewhere

Every message says what was found, what was expected and what to do. Programs print it as one line.
"""


class OmniError(Exception):
    """Base of every error that omnilive raises on purpose."""


class CheckpointError(OmniError):
    """A checkpoint cannot be used."""


class BudgetError(OmniError):
    """The cache budget cannot be met."""


class MediaError(OmniError):
    """A source of picture or sound cannot be read."""


class BackendError(OmniError):
    """A backend is absent or failed."""


class PlanError(OmniError):
    """A plan does not fit the state it is applied to."""


class RecordingError(OmniError):
    """A recording or a saved session cannot be read, or does not belong to what it is used with."""
