"""Every field of config.json that is read: what it cannot be is refused by name, in one line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from frontend_family import config

from omni_core.errors import CheckpointError
from omni_core.model_config import thinker_config

INF, NAN = float("inf"), float("nan")
NO_COUNTS = ("x", -1, 0, 2.5, [], {}, INF, NAN, True, 10**30)
NO_NUMBERS = ("x", -1, 0, [], {}, INF, NAN, True, 10**400)
NO_LISTS = ("x", 5, {}, INF, [1.5], [-1], [10**9], ["x"], [True], [[1]])
NO_OBJECTS = ("x", -1, 5, [1], INF, NAN, True)
COUNTS = {
    "text_config": (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
    ),
    "vision_config": (
        "depth",
        "hidden_size",
        "intermediate_size",
        "num_heads",
        "patch_size",
        "temporal_patch_size",
        "spatial_merge_size",
        "window_size",
        "out_hidden_size",
    ),
    "audio_config": (
        "encoder_layers",
        "d_model",
        "encoder_attention_heads",
        "encoder_ffn_dim",
        "num_mel_bins",
        "max_source_positions",
        "n_window",
        "output_dim",
    ),
}


def refused(section: str, field: str, value: Any) -> str:
    """The error of a config with one field changed; a section may be a path with dots."""
    made = config()
    owner = made
    for step in filter(None, section.split(".")):
        owner = owner[step]
    owner[field] = value
    with pytest.raises(CheckpointError) as caught:
        thinker_config(made)
    return str(caught.value)


def cases() -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    for section, names in COUNTS.items():
        for name in names:
            yield section, name, NO_COUNTS
    yield "text_config", "rms_norm_eps", (*NO_NUMBERS, 10**9)
    yield "text_config.rope_parameters", "rope_theta", (*NO_NUMBERS, 0.5)
    yield "text_config.rope_parameters", "mrope_section", NO_LISTS
    yield "vision_config", "fullatt_block_indexes", (*NO_LISTS, [2])
    for name in COUNTS:
        yield "", name, (*NO_OBJECTS, [])
    yield "", "omnilive", NO_OBJECTS
    yield "text_config", "rope_parameters", NO_OBJECTS
    yield "text_config", "tie_word_embeddings", ("yes", 1, [])


@pytest.mark.parametrize(("section", "field", "values"), list(cases()))
def test_what_a_field_cannot_be_is_refused_by_name(
    section: str, field: str, values: tuple[Any, ...]
) -> None:
    for value in values:
        said = refused(section, field, value)
        assert said.startswith("config.json: ")
        assert f"`{field}` is " in said and ", expected " in said
        assert len(said) < 300 and said.isprintable()


@pytest.mark.parametrize(
    ("section", "field", "value", "says"),
    [
        ("text_config", "hidden_act", "gelu", "`hidden_act` is 'gelu', expected 'silu'"),
        ("text_config", "use_sliding_window", True, "`use_sliding_window` is True"),
        ("text_config", "layer_types", ["full_attention", "sliding_attention"], "`layer_types`"),
        ("vision_config", "hidden_act", "gelu", "`hidden_act` is 'gelu', expected 'silu'"),
        ("vision_config", "rope_theta", 5000.0, "`rope_theta` is 5000.0, expected 10000.0"),
        ("vision_config", "rope_parameters", {"rope_theta": 5000}, "`rope_theta` is 5000"),
        ("vision_config", "rope_parameters", {"rope_type": "yarn"}, "'yarn' is not supported"),
        ("vision_config", "in_channels", 4, "`in_channels` is 4, expected 3"),
        ("vision_config", "in_chans", 4, "`in_chans` is 4, expected 3"),
        ("audio_config", "activation_function", "relu", "is 'relu', expected 'gelu'"),
        ("audio_config", "scale_embedding", True, "`scale_embedding` is True"),
    ],
)
def test_what_the_backends_do_not_compute_is_refused(
    section: str, field: str, value: Any, says: str
) -> None:
    said = refused(section, field, value)
    assert section in said and says in said


@pytest.mark.parametrize(
    ("section", "field", "value", "says"),
    [
        ("text_config", "num_attention_heads", 3, "hidden_size 64 does not divide"),
        ("vision_config", "num_heads", 3, "hidden_size 32 does not divide"),
        ("vision_config", "num_heads", 16, "16 heads of 2 numbers"),
        ("vision_config", "out_hidden_size", 32, "out_hidden_size is 32, expected .* 64"),
        ("vision_config", "window_size", 27, "expected a whole number above 27"),
        ("audio_config", "encoder_attention_heads", 3, "d_model 32 does not divide"),
        ("audio_config", "output_dim", 32, "output_dim is 32, expected .* 64"),
        ("audio_config", "max_source_positions", 49, "from 50 to 65536"),
    ],
)
def test_shapes_that_contradict_each_other(section: str, field: str, value: Any, says: str) -> None:
    made = config()
    made[section][field] = value
    with pytest.raises(CheckpointError, match=says):
        thinker_config(made)


def test_a_rope_theta_stated_twice_must_be_one() -> None:
    assert "`rope_theta` is" in refused("text_config", "rope_theta", 5e5)
    made = config()
    made["text_config"]["rope_theta"] = 1e6
    assert thinker_config(made).text.rope_theta == 1e6


def test_whether_a_checkpoint_is_trained() -> None:
    assert thinker_config(config()).trained
    assert not thinker_config({**config(), "omnilive": {"trained": False}}).trained
    assert "`trained` is 'no'" in refused("", "omnilive", {"trained": "no"})


def test_found_values_cannot_steer_a_terminal_or_fill_it() -> None:
    said = refused("text_config", "hidden_size", "\x1b[31m\n" + "x" * 10_000)
    assert said.isprintable() and len(said) < 300


def test_a_released_config_with_its_spellings_and_aliases() -> None:
    made = config()
    text, vision, audio = (made[f"{name}_config"] for name in ("text", "vision", "audio"))
    rope = text.pop("rope_parameters")
    text |= {
        "hidden_act": "silu",
        "max_window_layers": 2,
        "rope_scaling": {"mrope_section": [2, 3, 3], "rope_type": "default", "type": "default"},
        "rope_theta": rope["rope_theta"],
        "sliding_window": 32768,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
    }
    vision |= {"embed_dim": 32, "hidden_act": "silu", "in_chans": 3, "tokens_per_second": 25}
    audio |= {"activation_function": "gelu", "num_hidden_layers": 2, "scale_embedding": False}
    made["model_type"] = "qwen2_5_omni_thinker"
    found = thinker_config({"model_type": "qwen2_5_omni", "thinker_config": made})
    assert found.text.rope_theta == 1e6 and found.vision.rope_theta == 1e4
    assert found.prefix == "thinker." and found.fields.where == "config.json: thinker_config"
