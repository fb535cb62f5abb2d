from __future__ import annotations

import json
import threading

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

import omni_mlx  # noqa: E402
import omni_mlx.step as step  # noqa: E402
from omni_core.backend import ArenaLayout, MovePlan  # noqa: E402
from omni_core.checkpoints import open_checkpoint  # noqa: E402
from omni_core.errors import BackendError, BudgetError, CheckpointError, PlanError  # noqa: E402
from omni_core.units import EMBEDDED  # noqa: E402


@pytest.fixture(scope="module")
def backend(tiny):
    return omni_mlx.load(open_checkpoint(tiny[1]), device="cpu")


def layout(groups: int = 1, pages: int = 12, streams: int = 1) -> ArenaLayout:
    return ArenaLayout(pages, groups, 4 // groups, 2, 16, streams)


def dense(model, embeddings: np.ndarray, positions: np.ndarray, mask=None) -> np.ndarray:
    """Logits ``[T, vocab]`` of transformers in one shot; ``mask[T, T]`` is True where seen."""
    positions = torch.tensor(np.broadcast_to(positions, (3, embeddings.shape[0])).copy())
    allowed = None if mask is None else torch.tensor(mask)[None, None]
    with torch.no_grad():
        out = model(
            inputs_embeds=torch.tensor(embeddings)[None],
            position_ids=positions[:, None].long(),
            attention_mask=allowed,
            use_cache=False,
        )
    return out.logits[0].numpy()


def embed(model, tokens) -> np.ndarray:
    with torch.no_grad():
        return model.get_input_embeddings()(torch.tensor(np.asarray(tokens))).numpy()


def poison(backend) -> None:
    """NaN in every cell of the arena."""
    arena = backend._arena
    arena.keys = [mx.full(a.shape, float("nan"), a.dtype) for a in arena.keys]
    arena.values = [mx.full(a.shape, float("nan"), a.dtype) for a in arena.values]


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_chunks_with_media_equal_one_dense_shot(tiny, backend, planner, groups):
    model = tiny[0]
    rng = np.random.default_rng(1)
    place = layout(groups)
    backend.allocate(place)
    poison(backend)
    plans = planner(place)
    tokens = rng.integers(0, 512, 40)
    media = rng.normal(size=(6, 64)).astype(np.float32)
    rows = np.full(40, -1)
    rows[5:11] = [3, 1, 0, 2, 5, 4]
    positions = np.sort(rng.integers(0, 9000, (3, 40)), axis=1)
    inputs = np.where(rows[:, None] >= 0, media[rows], embed(model, tokens))
    wanted = dense(model, inputs, positions)
    tokens = np.where(rows >= 0, EMBEDDED, tokens)
    for start, stop in [(0, 32), (32, 33), (33, 40)]:
        cut = slice(start, stop)
        plan = plans.step(tokens[cut], positions[:, cut], rows[cut], [0, stop - start - 1])
        found = backend.forward(plan, mx.array(media)[None]).logits
        assert found.dtype == np.float32
        # transformers takes angles in float32, which tells at such positions.
        assert relative(found[0], wanted[[start, stop - 1]]) < 1e-4


def test_greedy_text_equals_transformers(tiny, backend, planner):
    model = tiny[0]
    backend.allocate(layout())
    plans = planner(layout())
    tokens = list(np.random.default_rng(2).integers(0, 512, 17))
    logits = backend.forward(plans.step(tokens, np.arange(17))).logits
    text = []
    for position in range(17, 49):
        text.append(int(logits[0, -1].argmax()))
        logits = backend.forward(plans.step([text[-1]], [position])).logits
    whole = [*tokens, *text]
    wanted = dense(model, embed(model, whole), np.arange(len(whole)))[16:-1].argmax(axis=-1)
    assert text == wanted.tolist()


def test_after_eviction_and_moves_logits_equal_a_masked_dense_run(tiny, backend, planner):
    model = tiny[0]
    place = layout(2)
    backend.allocate(place)
    poison(backend)
    plans = planner(place, seed=3)
    tokens = np.random.default_rng(3).integers(0, 512, 300)
    backend.forward(plans.step(tokens[:200], np.arange(200), logits=[]))
    gone = np.r_[4:100, 130:160]
    backend.move(plans.drop(plans.cells[0][:, gone]))
    # What is left changes places in a circle, so that every target is also a source.
    kept = np.setdiff1d(np.arange(200), gone)
    source = plans.cells[0][:, kept]
    backend.move(MovePlan(source.reshape(-1), np.roll(source, 1, 1).reshape(-1), plans.delta()))
    last = plans.step(tokens[200:], np.arange(200, 300), logits=np.arange(100))
    found = backend.forward(last).logits
    mask = np.tri(300, dtype=bool)
    mask[200:, gone] = False
    wanted = dense(model, embed(model, tokens), np.arange(300), mask)[200:]
    assert relative(found[0], wanted) < 3e-5


def test_a_merged_token_weighs_as_its_count(tiny, backend, planner):
    model = tiny[0]
    backend.allocate(layout())
    plans = planner(layout())
    tokens = np.array([7, 9, 11, 13])
    found = backend.forward(plans.step(tokens, [0, 1, 1, 2], counts=[1, 1, 3, 1])).logits
    repeated = np.array([7, 9, 11, 11, 11, 13])
    mask = np.tri(6, dtype=bool)
    mask[2:5, 2:5] = True
    wanted = dense(model, embed(model, repeated), [0, 1, 1, 1, 1, 2], mask)[-1]
    assert relative(found[0, 0], wanted) < 1e-5


def test_streams_of_one_layout_do_not_mix(tiny, backend, planner):
    tokens = np.random.default_rng(4).integers(0, 512, (3, 20))
    place = layout(streams=3)
    wide = omni_mlx.load(open_checkpoint(tiny[1]), device="cpu", streams=3)
    wide.allocate(place)
    together = wide.forward(planner(place).step(tokens, np.arange(20))).logits
    for stream in range(3):
        backend.allocate(layout())
        alone = backend.forward(planner(layout()).step(tokens[stream], np.arange(20))).logits
        assert relative(together[stream], alone[0]) < 1e-5


def test_scores_are_spelled_out_only_where_frames_or_mass_ask_for_it(backend, planner, monkeypatch):
    asked = []
    spelled = step.turned_attention
    monkeypatch.setattr(
        step, "turned_attention", lambda *given: asked.append(given) or spelled(*given)
    )
    place = layout(2)
    backend.allocate(place)
    plans = planner(place, frames=2)
    backend.forward(plans.step([1, 2, 3], np.arange(3)))
    assert not asked
    backend.forward(plans.step([4], [3], mass=True))
    assert len(asked) == 4
    backend.forward(plans.step([5], [0], shifts=[(0, 4), (1, 0)]))
    assert len(asked) == 8


def test_a_refused_step_leaves_no_trace(backend, planner):
    backend.allocate(layout())
    plans = planner(layout())
    first = backend.forward(plans.step([1, 2, 3], np.arange(3))).logits
    held = plans.live.copy()
    broken = plans.step([EMBEDDED] * 4, np.arange(3, 7), rows=np.arange(4))
    with pytest.raises(PlanError, match="embedding 3 of 2"):
        backend.forward(broken, mx.zeros((1, 2, 64)))
    with pytest.raises(BackendError, match="mlx failed in a step"):
        backend.forward(broken, _Failing((1, 4, 64)))
    plans.live, plans.next = held, 3
    after = backend.forward(plans.step([4], [3])).logits
    backend.allocate(layout())
    plans = planner(layout(), seed=9)
    again = backend.forward(plans.step([1, 2, 3], np.arange(3))).logits
    assert relative(first, again) < 1e-5
    assert relative(after, backend.forward(plans.step([4], [3])).logits) < 1e-5


class _Failing:
    def __init__(self, shape):
        self.shape = shape

    def __getitem__(self, _):
        raise RuntimeError("[malloc]\nno more")


def test_another_thread_may_call(backend, planner):
    backend.allocate(layout())
    plans = planner(layout())
    answers = []
    steps = [plans.step([5], [0]), plans.step([6], [1])]
    for plan in steps:
        thread = threading.Thread(
            target=lambda plan=plan: answers.append(backend.forward(plan).logits)
        )
        thread.start()
        thread.join()
    backend.allocate(layout())
    wanted = [backend.forward(plan).logits for plan in steps]
    assert all(np.array_equal(a, b) for a, b in zip(answers, wanted, strict=True))


def test_two_backends_take_turns_in_two_threads(tiny, backend, planner):
    other = omni_mlx.load(open_checkpoint(tiny[1]), device="cpu", weights="bf16")
    tokens = np.random.default_rng(6).integers(0, 512, 12)
    answers = {}

    def answer(each, name):
        each.allocate(layout())
        plans = planner(layout())
        steps = [plans.step([token], [place]) for place, token in enumerate(tokens)]
        answers[name] = [each.forward(plan).logits for plan in steps]

    before = mx.default_device(), mx.default_stream(mx.cpu)
    for each in (backend, other):
        answer(each, (each, "alone"))
    threads = [threading.Thread(target=answer, args=(e, (e, "both"))) for e in (backend, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (mx.default_device(), mx.default_stream(mx.cpu)) == before
    for each in (backend, other):
        assert np.array_equal(answers[each, "both"], answers[each, "alone"])


@pytest.mark.parametrize(("weights", "bound"), [("bf16", 0.05), ("8", 0.1), ("4", 0.6)])
def test_smaller_weights_stay_close(tiny, backend, planner, weights, bound):
    tokens = np.random.default_rng(5).integers(0, 512, 30)
    small = omni_mlx.load(open_checkpoint(tiny[1]), device="cpu", weights=weights)
    answers = []
    for each in (backend, small):
        each.allocate(layout())
        answers.append(each.forward(planner(layout()).step(tokens, np.arange(30))).logits[0, 0])
    assert np.linalg.norm(answers[1] - answers[0]) / np.linalg.norm(answers[0]) < bound
    assert small.memory().accounted < backend.memory().accounted
    assert small.element == (2 if weights == "bf16" else 4)


def test_released_names_and_a_tied_head(tiny, backend, planner, tmp_path):
    model, folder = tiny
    config = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = True
    whole = {"model_type": "qwen2_5_omni", "thinker_config": config}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    stored = {f"thinker.{n}": a for n, a in mx.load(str(folder / "model.safetensors")).items()}
    head = stored.pop("thinker.lm_head.weight")
    thinker = tmp_path / "model-1.safetensors"
    mx.save_safetensors(str(thinker), stored)
    # The talker's shard is absent on purpose: it must not be opened.
    index = {
        "weight_map": dict.fromkeys(stored, thinker.name) | {"talker.x": "model-2.safetensors"}
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    tied = omni_mlx.load(open_checkpoint(tmp_path), device="cpu")
    tied.allocate(layout())
    found = tied.forward(planner(layout()).step([1, 2, 3], np.arange(3))).logits
    with torch.no_grad():
        hidden = model.model(
            inputs_embeds=torch.tensor(embed(model, [1, 2, 3]))[None],
            position_ids=torch.arange(3).expand(3, 1, 3),
        ).last_hidden_state[0, -1]
        wanted = model.get_input_embeddings().weight @ hidden
    assert relative(found[0, 0], wanted.numpy()) < 1e-5
    assert head.shape == (512, 64)


def test_a_missing_or_misshapen_tensor_is_named(tiny, tmp_path):
    (tmp_path / "config.json").write_text((tiny[1] / "config.json").read_text())
    stored = mx.load(str(tiny[1] / "model.safetensors"))
    name = "visual.blocks.1.mlp.up_proj.bias"
    mx.save_safetensors(str(tmp_path / "model.safetensors"), stored | {name: mx.zeros(3)})
    with pytest.raises(CheckpointError, match=rf"{name} has shape \[3\]"):
        omni_mlx.load(open_checkpoint(tmp_path), device="cpu")
    del stored[name]
    mx.save_safetensors(str(tmp_path / "model.safetensors"), stored)
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        omni_mlx.load(open_checkpoint(tmp_path), device="cpu")


def test_a_cache_beyond_the_machine_is_refused_before_it_is_allocated(backend):
    before = mx.get_active_memory()
    with pytest.raises(BudgetError, match="smaller --budget"):
        backend.allocate(layout(pages=10**9))
    assert mx.get_active_memory() <= before


def test_wrong_words_and_devices_are_one_line(tiny):
    checkpoint = open_checkpoint(tiny[1])
    with pytest.raises(BackendError, match="--device auto, gpu or cpu"):
        omni_mlx.load(checkpoint, device="cuda")
    with pytest.raises(BackendError, match="'3' are unknown"):
        omni_mlx.load(checkpoint, weights="3")
    if not mx.is_available(mx.gpu):
        with pytest.raises(BackendError, match="use --device cpu"):
            omni_mlx.load(checkpoint, device="gpu")
