"""The ids that a checkpoint's tokenizer files hold, against the vocabulary of its weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omni_core.checkpoints import read_json
from omni_core.errors import CheckpointError
from omni_core.fields import shown


def check_vocabulary(folder: Path, vocab: int) -> None:
    """Refuse a tokenizer whose ids the embedding has no rows for.

    Reads ``tokenizer.json``; where there is none, ``vocab.json`` and the added tokens of
    ``tokenizer_config.json``. A folder without either passes: it may be of weights alone.

    Raises:
        CheckpointError: an id outside of the vocabulary, or none.
    """
    whole, plain = folder / "tokenizer.json", folder / "vocab.json"
    if whole.exists():
        _check(whole, _whole(read_json(whole)), vocab)
    elif plain.exists():
        _check(plain, iter(read_json(plain).items()), vocab)
        config = folder / "tokenizer_config.json"
        added = read_json(config).get("added_tokens_decoder") if config.exists() else None
        if isinstance(added, dict):
            numbers = ((token, _number(key)) for key, token in added.items())
            _check(config, numbers, vocab)


def _whole(tokenizer: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Tokens and ids of a ``tokenizer.json``; a unigram model's are those of its list."""
    model = tokenizer.get("model")
    entries = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(entries, dict):
        yield from entries.items()
    elif isinstance(entries, list):
        yield from ((entry, index) for index, entry in enumerate(entries))
    added = tokenizer.get("added_tokens")
    for entry in added if isinstance(added, list) else []:
        if isinstance(entry, dict):
            yield entry.get("content"), entry.get("id")


def _number(key: str) -> int | str:
    return int(key) if key.isdecimal() and len(key) < 12 else key


def _check(file: Path, entries: Iterator[tuple[Any, Any]], vocab: int) -> None:
    for token, number in entries:
        if type(number) is not int or not 0 <= number < vocab:
            raise CheckpointError(
                f"{file}: token {shown(token)} has id {shown(number)}, expected 0 to {vocab - 1} "
                f"for weights with a vocabulary of {vocab}: tokenizer and weights are of different "
                "models"
            )
