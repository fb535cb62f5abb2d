"""Chrome traces: complete events, readable at any time, nothing where none is wanted."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from numpy_backend import plain_model, second

from omni_core.errors import RecordingError
from omni_core.session import Session
from omni_core.tracing import NO_TRACE, FileTracer

Events = list[dict[str, Any]]


def spans(events: Events, name: str) -> Events:
    return [event for event in events if event["ph"] == "X" and event["name"] == name]


def test_a_session_traced(tmp_path: Path) -> None:
    with FileTracer(tmp_path / "t.json") as tracer:
        session = Session(plain_model(), budget=256, max_tokens=6, tracer=tracer)
        for index in range(20):
            session.append(second(index))
        session.ask("what?")
        session.save(tmp_path / "s")
    events = json.loads((tmp_path / "t.json").read_text())
    assert [event["args"]["unit"] for event in spans(events, "encode")] == list(range(20))
    assert {event["args"]["tokens"] for event in spans(events, "encode")} == {18}
    forward = spans(events, "forward")
    assert (forward[0]["args"], forward[1]["args"]) == (
        {"unit": -1, "tokens": 73},
        {"unit": 0, "tokens": 18},
    )
    for name in ("prepare", "retain", "move", "decode", "save"):
        assert spans(events, name), name
    (decode,) = spans(events, "decode")
    assert decode["args"]["unit"] == 20 and decode["args"]["question"] == 5
    inside = [e for e in forward if decode["ts"] <= e["ts"] <= decode["ts"] + decode["dur"]]
    assert sum(event["args"]["tokens"] for event in inside) == decode["args"]["tokens"] > 0
    for event in events:
        assert event["pid"] > 0 and event["ph"] in "XM"
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0 and event["tid"] > 0


def test_a_trace_changes_nothing(tmp_path: Path) -> None:
    summaries = []
    for tracer in (NO_TRACE, FileTracer(tmp_path / "t.json")):
        session = Session(plain_model(), budget=256, max_tokens=6, tracer=tracer)
        for index in range(20):
            session.append(second(index))
        summaries.append(session.summary())
    assert summaries[0] == summaries[1]
    tracer.close()


def test_each_span_is_there_as_soon_as_it_has_ended(tmp_path: Path) -> None:
    tracer = FileTracer(tmp_path / "t.json")
    for index in range(5):
        with tracer.span("step", number=index) as span:
            span.add(more="said within")
        # A reader that takes an array without its end, as Chrome does.
        events = json.loads((tmp_path / "t.json").read_text() + "]")
        assert [e["args"] for e in spans(events, "step")][-1] == {
            "number": index,
            "more": "said within",
        }
    tracer.close()


def test_a_span_that_raises_is_kept(tmp_path: Path) -> None:
    with (
        FileTracer(tmp_path / "t.json") as tracer,
        pytest.raises(ValueError, match="inside"),
        tracer.span("fails"),
    ):
        raise ValueError("inside")
    assert spans(json.loads((tmp_path / "t.json").read_text()), "fails")


def test_threads_have_rows_of_their_own_and_their_names(tmp_path: Path) -> None:
    with FileTracer(tmp_path / "t.json") as tracer:

        def work() -> None:
            for index in range(200):
                with tracer.span("work", number=index):
                    pass

        threads = [threading.Thread(target=work, name=f"worker {n}") for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = json.loads((tmp_path / "t.json").read_text())
    assert len(spans(events, "work")) == 600
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(names.values()) == ["worker 0", "worker 1", "worker 2"]
    for thread in names:
        mine = [e["args"]["number"] for e in spans(events, "work") if e["tid"] == thread]
        assert mine == list(range(200))


def test_spans_after_the_end_are_left_out(tmp_path: Path) -> None:
    tracer = FileTracer(tmp_path / "t.json")
    late = tracer.span("late")
    with late:
        tracer.close()
    tracer.close()
    assert spans(json.loads((tmp_path / "t.json").read_text()), "late") == []


def test_a_disk_that_fills_up_ends_the_trace_alone(tmp_path: Path) -> None:
    tracer = FileTracer(tmp_path / "t.json")
    real = tracer._file

    class Full:
        def write(self, text: str) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            raise OSError(28, "No space left on device")

    tracer._file = Full()
    with tracer.span("lost"):
        pass
    assert tracer.failed is not None and "No space left on device" in tracer.failed
    with tracer.span("lost too"):
        pass
    tracer.close()
    real.close()


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot be written"):
        FileTracer(tmp_path / "nowhere" / "t.json")


def test_no_trace_keeps_nothing() -> None:
    with NO_TRACE.span("step", unit=3) as span:
        span.add(tokens=4)
    assert span is NO_TRACE and vars(NO_TRACE) == {}
