"""``--save`` and ``--resume``: what can be refused is refused before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from omni_core import Session
from omni_core.aggregation import Aggregation
from omni_core.errors import OmniError, RecordingError
from omni_core.saving import STATE, SavedSession, check_target, open_saved
from omnilive.interrupts import put_off
from omnilive.models import location
from omnilive.options import LiveOptions, UsageError
from omnilive.output import Output
from omnilive.terminal import OutputError

_SETTLED = (
    "--retention",
    "--sinks",
    "--layout",
    "--budget",
    "--kv-bits",
    "--seal",
    "--aggregate",
    "--theta-inter",
    "--theta-intra",
    "--layer-budgets",
    "--layer-blend",
    "--system",
    "--max-tokens",
    "--temperature",
    "--seed",
)


def continued(options: LiveOptions) -> tuple[LiveOptions, SavedSession | None]:
    """The session that goes on, and the options as they then are: its model and its settings.

    Raises:
        UsageError: a setting was given that the saved session has settled.
        RecordingError: no saved session is there, or it is damaged.
    """
    if options.resume is None:
        return options, None
    for option in _SETTLED:
        if option in options.given:
            raise UsageError(
                f"{option} cannot be given with --resume: the session goes on with the settings "
                "that it was saved with; leave it out"
            )
    saved = open_saved(options.resume)
    settings, model = saved.settings, options.model
    if "--model" not in options.given:
        model = replace(model, model=saved.model.name)
    if "--weights" not in options.given:
        model = replace(model, weights=saved.model.weights)
    options = replace(
        options,
        model=model,
        retention=settings.retention.name,
        layout=settings.layout.name,
        budget=str(settings.budget),
        kv_bits=settings.kv_bits,
        seal=settings.seal if settings.sealing else None,
        **_aggregated(settings.aggregation),
        system=settings.system,
        max_tokens=settings.max_tokens,
        temperature=settings.temperature,
        seed=settings.seed,
    )
    return options, saved


def _aggregated(aggregation: Aggregation | None) -> dict[str, Any]:
    """The options of a session that is aggregated."""
    if aggregation is None:
        return {}
    thetas = {"theta_inter": aggregation.inter, "theta_intra": aggregation.intra}
    return {"aggregate": True, **thetas}


def check_save(options: LiveOptions) -> None:
    """Refuse a folder for ``--save`` that holds anything but the session that is resumed.

    Raises:
        RecordingError: with what it holds, or why it cannot be written.
    """
    folder = options.save
    if folder is None:
        return
    if options.record is not None and options.record.resolve() == folder.resolve():
        raise UsageError("--save and --record name the same folder; give each its own")
    check_target(folder)
    resumed = options.resume is not None and options.resume.resolve() == folder.resolve()
    if (folder / STATE).exists() and not resumed:
        raise RecordingError(
            f"{folder}: holds a saved session; go on with it by --resume, or give a new folder"
        )


@contextmanager
def saved_at_end(options: LiveOptions, session: Session, output: Output) -> Iterator[None]:
    """Save the session after the block, also where something in it failed; else say that not.

    Raises:
        RecordingError: it cannot be saved.
    """
    if options.save is None:
        yield
        return
    try:
        yield
    except Exception:
        with suppress(OSError, OmniError):
            try:
                _save(options, session, output)
            except OutputError:
                # It is saved, and nobody can be told.
                pass
            except OmniError as error:
                _tell_not_saved(session, output, str(error))
        raise
    except BaseException:
        # In the middle of a unit there is nothing whole to save.
        with suppress(OSError, OmniError):
            _tell_not_saved(session, output, f"{options.save}: the second Ctrl-C ended it at once")
        raise
    _save(options, session, output)


def _save(options: LiveOptions, session: Session, output: Output) -> None:
    if options.save is not None:
        with put_off():
            session.save(options.save, name=location(options.model.model))
            output.note(f"saved at {session.time:.2f} s in {options.save}; go on with --resume")


def _tell_not_saved(session: Session, output: Output, reason: str) -> None:
    message = f"the session was not saved: {reason}"
    output.event({"event": "warning", "t": round(session.time, 3), "message": message})
