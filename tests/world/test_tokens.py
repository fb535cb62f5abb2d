"""The tokenizer: one token a word, bytes for the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from streamworld import questions, script, spec, tokens
from streamworld.outside import SENTENCES


def test_the_vocabulary_is_small() -> None:
    assert tokens.tokenizer().get_vocab_size() <= 600


@pytest.mark.parametrize("word", [word for word in spec.ANSWERS if word != spec.OUTSIDE])
def test_an_answer_word_is_one_token(word: str) -> None:
    assert tokens.tokenizer().decode([tokens.word_id(word)]) == word


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30).filter(lambda text: "<|" not in text))
def test_any_text_can_be_typed(text: str) -> None:
    text = text.lower().lower()
    made = tokens.tokenizer()
    assert made.decode(tokens.ids_of(f"?{text}")) == f"?{made.normalizer.normalize_str(text)}"


@pytest.mark.parametrize("text", ["Did you hear FOXTROT?", "did you hear foxtrot?"])
def test_capitals_do_not_matter(text: str) -> None:
    assert len(tokens.ids_of(text)) == 5
    assert tokens.ids_of(text) == tokens.ids_of(text.lower())


def test_every_sentence_of_the_world_is_words() -> None:
    made = script.write(1, 30, 60)
    drawn = questions.draw(made, 1, 40)
    for stream in range(30):
        for slot in range(40):
            text = drawn.text(stream, slot)
            if drawn.kind(stream, slot)[0] != "outside":
                assert len(tokens.ids_of(text)) <= len(text.split()) + 1, text


def test_sentences_outside_are_spelled_where_they_must_be() -> None:
    assert max(len(tokens.ids_of(text)) for text in SENTENCES) <= 40
    assert any(len(tokens.ids_of(text)) > 2 * len(text.split()) for text in SENTENCES)


def test_branches_are_what_the_chat_format_says() -> None:
    made = script.write(1, 3, 20, spoken=1.0)
    drawn = questions.draw(made, 1, 10)
    ids, lengths, answers, answer_lengths = tokens.encode(drawn)
    for stream in range(3):
        for slot in range(10):
            branch = ids[stream, slot, : lengths[stream, slot]].tolist()
            assert branch == tokens.ids_of(drawn.text(stream, slot) + tokens.TURN)
            told = answers[stream, slot, : answer_lengths[stream, slot]].tolist()
            assert told[-1] == tokens.special("<|im_end|>")
            assert tokens.tokenizer().decode(told) == drawn.answer_text(stream, slot)
            assert (answers[stream, slot, len(told) :] == tokens.special("<|endoftext|>")).all()
    assert drawn.text(0, 0) == ""


def test_files_hold_the_same_tokenizer(tmp_path: Path) -> None:
    tokens.write(tmp_path)
    again = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "<|im_start|>user\nWhat did you hear 19 seconds ago, Zoé?<|im_end|>\n"
    assert again.encode(text).ids == tokens.ids_of(text)
    assert again.token_to_id("<|VIDEO|>") == again.get_vocab_size() - 1


def test_what_is_no_special_token_is_named() -> None:
    with pytest.raises(KeyError, match=r"<\|x\|> is no special token"):
        tokens.special("<|x|>")
