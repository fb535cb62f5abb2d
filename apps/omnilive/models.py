"""From a model's name to a loaded model, in two steps: look and check, then load weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from omni_core import Model
from omni_core.checkpoints import Checkpoint, open_checkpoint
from omni_core.errors import CheckpointError
from omni_core.frontend.base import Frontend
from omni_core.frontend.qwen2_5_omni import QwenOmniFrontend
from omni_core.identity import identity
from omni_core.model_config import ThinkerConfig, thinker_config
from omni_core.saving import SavedModel
from omnilive import backends, hub
from omnilive.sinks import own_omnipick
from omnilive.tokenizer import FileTokenizer
from omnilive.watch import ASKED

EMBEDDED = "embedded"
"""The name of the checkpoint that ships with omnilive."""
EMBEDDED_FOLDER = Path(__file__).parent / "assets" / "embedded"
"""Where it lies."""
UNTRAINED = "the model is untrained: its weights are random, and so are its answers"
"""Said of such a model."""

_NUMBERS = {4: "f32", 2: "bf16"}


@dataclass(frozen=True)
class Prepared:
    """A checkpoint that was found whole, and where it is to run; no weights are loaded yet.

    Attributes:
        name: as the user named it.
        backend, device, weights: with ``backend`` chosen.
        trained: False for random weights.
        watch: how a watch is put to the model, as :mod:`omnilive.watch` has it.
    """

    name: str
    backend: str
    device: str
    weights: str
    checkpoint: Checkpoint
    config: ThinkerConfig
    frontend: Frontend
    trained: bool
    watch: str = ASKED

    @property
    def element(self) -> int:
        """Bytes that a key or value number will take, as far as can be told yet."""
        return backends.expected_element(self.backend, self.device, self.weights)

    def described(self, element: int) -> SavedModel:
        """The model as a saved session knows it, computing with ``element`` bytes a number.

        Raises:
            CheckpointError: the weights cannot be read.
        """
        weights = _NUMBERS[element] if self.weights == "auto" else self.weights
        return SavedModel(self.name, identity(self.checkpoint), weights, element)

    def check(self, *, sealed: bool = False) -> None:
        """Refuse a device or a number format that the backend has not.

        Args:
            sealed: whether its cache is to be sealed.

        Raises:
            BackendError: with what there is.
        """
        backends.check(self.backend, self.device, self.weights)
        if sealed:
            backends.check_sealing(self.backend)

    def load(self, streams: int = 1) -> Model:
        """Load the weights, for steps of so many streams of one layout.

        Raises:
            BackendError: the device is not there, or failed.
            CheckpointError: a tensor is missing or of another shape.
        """
        backend = backends.load_backend(
            self.backend, self.checkpoint, self.device, self.weights, streams
        )
        about = self.described(backend.element)
        return Model(
            backend,
            self.frontend,
            self.config.text,
            self.name,
            self.trained,
            own_omnipick(self.checkpoint.path),
            about.identity,
            about.weights,
        )


def prepare(
    model: str = EMBEDDED, backend: str = "auto", device: str = "auto", weights: str = "auto"
) -> Prepared:
    """Find a checkpoint and read all but its weights.

    Args:
        model: ``embedded``, a checkpoint folder, or a hub id as ``Qwen/Qwen2.5-Omni-3B``.
        backend: ``auto``, ``mlx`` or ``cuda``.
        device: ``auto``, or a device of that backend.
        weights: ``auto``, ``f32``, ``bf16``, ``8`` or ``4``.

    Raises:
        BackendError: no such backend here.
        CheckpointError: no such checkpoint, or one that is damaged, unsupported or refused.
    """
    chosen = backends.choose(backend)
    checkpoint = open_checkpoint(_folder(model))
    config = thinker_config(checkpoint.config)
    frontend = QwenOmniFrontend.from_checkpoint(
        checkpoint.config, checkpoint.preprocessor, FileTokenizer(checkpoint.path)
    )
    marks = checkpoint.config.get("omnilive", {})
    trained = bool(marks.get("trained", True))
    watch = str(marks.get("watch", ASKED))
    return Prepared(model, chosen, device, weights, checkpoint, config, frontend, trained, watch)


def load(
    model: str = EMBEDDED, backend: str = "auto", device: str = "auto", weights: str = "auto"
) -> Model:
    """A loaded model; arguments and errors as :func:`prepare`, then :meth:`Prepared.load`."""
    return prepare(model, backend, device, weights).load()


def location(model: str) -> str:
    """A name under which a model is found again from any folder."""
    if model == EMBEDDED or hub.is_hub_id(model):
        return model
    return str(Path(model).resolve())


def folder(model: str) -> Path | None:
    """Where a checkpoint lies, as far as can be told without fetching it."""
    if model == EMBEDDED:
        return EMBEDDED_FOLDER
    return None if hub.is_hub_id(model) else Path(model)


def _folder(model: str) -> Path:
    if model == EMBEDDED:
        return EMBEDDED_FOLDER
    if hub.is_hub_id(model):
        return hub.fetch(model)
    if not Path(model).is_dir():
        raise CheckpointError(
            f"{model}: no such folder; give --model a checkpoint folder or a hub id as owner/name"
        )
    return Path(model)
