"""``omnilive doctor``: what is found, what fails, and what to do then."""

from __future__ import annotations

import pytest

from omnilive import backends, doctor
from omnilive.capture.listing import CameraEntry, MicrophoneEntry
from omnilive.cli import main


@pytest.fixture(autouse=True)
def no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnilive.capture.listing.cameras", lambda: iter(()))
    monkeypatch.setattr("omnilive.capture.listing.microphones", lambda clock: iter(()))


def lines(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What was printed about each part, its mend included."""
    found: dict[str, str] = {}
    part = ""
    for line in capsys.readouterr().out.splitlines():
        if not line.startswith(" " * 6):
            part = line[6:].split(":")[0]
        found[part] = found.get(part, "") + line + "\n"
    return found


@pytest.mark.shipped
@pytest.mark.parametrize("backend", ["mlx", "cuda"])
def test_a_backend_is_held_against_float64(
    backend: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlx.core" if backend == "mlx" else "torch")
    assert main(["doctor", "--backend", backend]) == 0
    found = lines(capsys)
    assert list(found) == [
        "machine",
        f"backend {backend}",
        *("cameras", "microphones", "turn taking", "voice", "terminal"),
    ]
    assert (
        found[f"backend {backend}"].startswith("ok") and "of float64" in found[f"backend {backend}"]
    )
    assert found["cameras"].startswith("none") and "--source CLIP" in found["cameras"]
    monkeypatch.setattr("omni_core.reference.check.worst_difference", lambda *_: 0.5)
    assert main(["doctor", "--backend", backend]) == 1
    told = lines(capsys)[f"backend {backend}"]
    assert told.startswith("FAIL") and "expected 0.001" in told and "-> this machine" in told


def test_without_any_backend_it_fails_with_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    assert not doctor.run()
    found = lines(capsys)
    for backend in ("mlx", "cuda"):
        assert found[f"backend {backend}"].startswith("FAIL")
        assert f'pip install -e ".[{backend}]"' in found[f"backend {backend}"]


def test_one_backend_is_enough(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        doctor,
        "_backend",
        lambda name: doctor.Finding(f"backend {name}", "ok" if name == "cuda" else "none", "x"),
    )
    assert doctor.run()


def test_a_part_that_breaks_is_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> doctor.Finding:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(doctor, "_speech", broken)
    monkeypatch.setattr(doctor, "_backend", lambda name: doctor.Finding(name, "ok", "x"))
    assert not doctor.run()
    assert "RuntimeError: two lines" in lines(capsys)["turn taking"]


def test_devices_that_do_not_work_say_what_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_backend", lambda name: doctor.Finding(name, "ok", "x"))
    camera = CameraEntry(0, "Cam", True, problem="gives no frames")
    microphone = MicrophoneEntry(3, "Mic", True, 48_000, 1, -120.0)
    monkeypatch.setattr("omnilive.capture.listing.cameras", lambda: iter([camera]))
    monkeypatch.setattr("omnilive.capture.listing.microphones", lambda clock: iter([microphone]))
    assert not doctor.run()
    found = lines(capsys)
    assert found["cameras"].startswith("FAIL") and "->" in found["cameras"]
    assert found["microphones"].startswith("warn") and "silence" in found["microphones"]
