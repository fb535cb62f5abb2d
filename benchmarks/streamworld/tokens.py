"""The world's tokenizer: a token for each word of its sentences, bytes for all others.

A word's token has its leading space, as in byte-level BPE, except where a sentence begins with it.
Text is read in lower case. Any text can be typed: what is no token is spelled in bytes.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_core.errors import CheckpointError
from omni_core.session import SYSTEM
from streamworld import spec
from streamworld.asking import ASKS
from streamworld.outside import ABOUT, SENTENCES
from streamworld.questions import Questions
from streamworld.sentences import FORMS, filled

try:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
except (ImportError, OSError) as error:
    raise CheckpointError(
        "the stream world's text needs the tokenizers package, which cannot be loaded: "
        f"{' '.join(str(error).split())}; pip install -e . in the checkout"
    ) from None

SPECIALS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>"),
    *("<|audio_eos|>", "<|vision_bos|>", "<|vision_eos|>", "<|vision_pad|>", "<|IMAGE|>"),
    "<|VIDEO|>",
)
TURN = "<|im_end|>\n<|im_start|>assistant\n"
"""What stands between a question and its answer."""
_ROLES = ("system", "user", "assistant")
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Ints = npt.NDArray[np.int32]


@cache
def tokenizer() -> Tokenizer:
    """The tokenizer; the same ids on every machine."""
    ids = {
        symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    for word in _words():
        ids.setdefault(word, len(ids))
    made = Tokenizer(models.BPE(vocab=ids, merges=[], ignore_merges=True))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = _pre_tokenizer()
    # An answer's first word has its space too, which nobody needs to read.
    made.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    made.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIALS])
    return made


def write(folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``."""
    tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "image_token": "<|IMAGE|>",
        "audio_token": "<|AUDIO|>",
        "video_token": "<|VIDEO|>",
        "vision_bos_token": "<|vision_bos|>",
        "vision_eos_token": "<|vision_eos|>",
        "audio_bos_token": "<|audio_bos|>",
        "audio_eos_token": "<|audio_eos|>",
        "model_max_length": 32768,
        "chat_template": _TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def ids_of(text: str) -> list[int]:
    """Token ids of a text; special tokens written in it become theirs."""
    return list(tokenizer().encode(text, add_special_tokens=False).ids)


def special(text: str) -> int:
    """A special token's id."""
    found = tokenizer().token_to_id(text)
    if found is None:
        raise KeyError(f"{text} is no special token; known are {', '.join(SPECIALS)}")
    return int(found)


def prefix_ids(system: str = SYSTEM) -> list[int]:
    """What stands before the stream's first unit."""
    return ids_of(f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n")


def answer_ids(codes: Any) -> list[int]:
    """Token ids of an answer, without the end of its turn."""
    if codes[0] == spec.ANSWER[spec.OUTSIDE]:
        return [special_word(spec.OUTSIDE_LINE.split()[0]), *ids_of(spec.OUTSIDE_LINE[1:])]
    return [word_id(spec.ANSWERS[code]) for code in codes if code >= 0]


def word_id(word: str) -> int:
    """The token of a word with its space before it: as it stands in sentences and answers."""
    (found,) = ids_of(f" {word}")
    return found


def special_word(word: str) -> int:
    """A word's token where nobody types it, as the capital that begins the outside line."""
    return int(tokenizer().token_to_id(f"Ġ{word}"))


def encode(questions: Questions) -> tuple[Ints, Ints, Ints, Ints]:
    """Branches and answers for training.

    Returns ``(ids [S, Q, L], lengths [S, Q], answers [S, Q, A], answer_lengths [S, Q])``: a branch
    goes from after the stream's last unit to where the answer begins, an answer ends with
    ``<|im_end|>``; both are padded with ``<|endoftext|>``.
    """
    keys = np.stack([questions.ask, questions.form, questions.slots[..., 0]], axis=-1)
    branch, branch_length = _table(keys, lambda key: _branch(*(int(k) for k in key)))
    end = special("<|im_end|>")
    answer, answer_length = _table(questions.answer, lambda codes: [*answer_ids(codes), end])
    return branch, branch_length, answer, answer_length


@cache
def _branch(ask: int, form: int, slot: int) -> list[int]:
    text = "" if form < 0 else filled(ASKS[ask], form, (slot, -1))
    return ids_of(text + TURN)


def _table(keys: Any, spell: Any) -> tuple[Ints, Ints]:
    """Spell each distinct key once, then put the spellings in every place."""
    distinct, place = np.unique(keys.reshape(-1, keys.shape[-1]), axis=0, return_inverse=True)
    spelled = [spell(key) for key in distinct]
    lengths = np.asarray([len(ids) for ids in spelled], np.int32)
    table = np.full((len(spelled), int(lengths.max())), special("<|endoftext|>"), np.int32)
    for row, ids in zip(table, spelled, strict=True):
        row[: len(ids)] = ids
    shape = keys.shape[:-1]
    return table[place.reshape(-1)].reshape(*shape, -1), lengths[place.reshape(-1)].reshape(shape)


def _pre_tokenizer() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _words() -> list[str]:
    """Every piece of the world's sentences and answers, in a fixed order."""
    split = _pre_tokenizer()
    found: dict[str, None] = {}

    def learn(text: str) -> None:
        for piece, _ in split.pre_tokenize_str(text):
            found.setdefault(piece)

    for word in spec.ANSWERS:
        if word != spec.OUTSIDE:
            learn(f" {word}")
    learn(f" {spec.OUTSIDE_LINE.lower()}")
    learn(f" {spec.OUTSIDE_LINE.split()[0]}")
    for role in _ROLES:
        learn(f"{role}\n")
    learn(f"{SYSTEM.lower()}")
    for number in (*range(65), *spec.AGO):
        learn(f" {number}")
    for ask in ASKS:
        for form in range(len(FORMS[ask.sentences])):
            for value in _gap_values(ask.sentences, form):
                learn(filled(ask, form, (value, -1)).lower())
    for sentence in ABOUT:
        learn(sentence.replace(" {}", "").lower())
    return list(found)


def _gap_values(name: str, form: int) -> range:
    sentence = FORMS[name][form]
    gaps = {
        "{word}": range(len(spec.WORDS)),
        "{thing}": range(spec.THINGS),
        "{a}": range(1, spec.THINGS),
        "{nth}": range(len(spec.ORDINALS)),
        "{n}": range(1, 3),
        "{form}": range(len(spec.SHAPES)),
        "{outside}": range(0, min(12, len(SENTENCES))),
    }
    return next((values for gap, values in gaps.items() if gap in sentence), range(1))
