"""Text to token ids and back, from a checkpoint's tokenizer files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omni_core.checkpoints import read_json
from omni_core.errors import CheckpointError

# Qwen2's word boundaries, as its tokenizer.json states them; vocab.json and merges.txt do not.
_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class FileTokenizer:
    """A checkpoint's tokenizer; implements :class:`omni_core.frontend.base.Tokenizer`.

    Reads ``tokenizer.json``; where there is none, ``vocab.json`` and ``merges.txt`` as Qwen2's
    byte-level BPE, with the added tokens of ``tokenizer_config.json``.

    Raises:
        CheckpointError: no tokenizer files, or files that cannot be read; or no library to read
            them with.
    """

    def __init__(self, folder: Path | str) -> None:
        self._tokenizer = _read(Path(folder))

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``; special tokens written in it become their ids."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        """Text of ``ids``, special tokens left out."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


def _read(folder: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except (ImportError, OSError) as error:
        raise CheckpointError(
            "reading text needs the tokenizers package, which cannot be loaded: "
            f"{' '.join(str(error).split())}; pip install -e . in the checkout"
        ) from None
    whole = folder / "tokenizer.json"
    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    if whole.exists():
        try:
            return Tokenizer.from_file(str(whole))
        except Exception as error:  # the library raises bare Exception
            raise CheckpointError(
                f"{whole}: not readable as a tokenizer ({error}); fetch it again"
            ) from None
    if vocab.exists() and merges.exists():
        return _byte_level(vocab, merges, folder / "tokenizer_config.json")
    raise CheckpointError(
        f"{folder}: no tokenizer.json, and no vocab.json with merges.txt; fetch the checkpoint's "
        "tokenizer files"
    )


def _byte_level(vocab: Path, merges: Path, config: Path) -> Any:
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
    )

    try:
        tokenizer = Tokenizer(models.BPE.from_file(str(vocab), str(merges)))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(
            f"{vocab}, {merges.name}: not readable as a BPE vocabulary ({error}); fetch them again"
        ) from None
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = read_json(config).get("added_tokens_decoder", {}) if config.exists() else {}
    for number in sorted(added, key=int):
        entry = added[number]
        token = AddedToken(entry["content"], normalized=False, special=entry.get("special", True))
        tokenizer.add_special_tokens([token]) if token.special else tokenizer.add_tokens([token])
        if tokenizer.token_to_id(entry["content"]) != int(number):
            raise CheckpointError(
                f"{config}: {entry['content']} is token {number} there, but "
                f"{tokenizer.token_to_id(entry['content'])} after {vocab.name}: the files are of "
                "different checkpoints"
            )
    return tokenizer
