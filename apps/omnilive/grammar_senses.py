"""The words for cameras, microphones and conversation, and the commands that look after them."""

from __future__ import annotations

import argparse
from typing import Any

from omnilive import reading
from omnilive.grammar_parts import add_debug, formatter
from omnilive.options import BACKENDS


def add_senses(live: argparse.ArgumentParser) -> None:
    """Which devices ``live`` follows, and how it converses."""
    senses = live.add_argument_group("camera and microphone")
    senses.add_argument(
        "--camera",
        type=reading.text,
        metavar="WHICH",
        help="number, part of the name, address (http, rtsp), file, or none (default: the first; "
        "`omnilive devices` lists them)",
    )
    senses.add_argument(
        "--mic",
        type=reading.text,
        metavar="WHICH",
        help="number, part of the name, file, or none (default: the system's)",
    )
    senses.add_argument(
        "--pause",
        type=reading.seconds,
        default=0.6,
        metavar="S",
        help="seconds of silence that end what somebody says (default: %(default)s)",
    )
    senses.add_argument(
        "--no-barge-in",
        dest="barge_in",
        action="store_false",
        help="speech does not end a running answer",
    )
    senses.add_argument(
        "--speak",
        action="store_true",
        help="say answers with the system's voice; the microphone is not heard meanwhile",
    )


def add_watch(answers: Any) -> None:
    """``--watch``."""
    answers.add_argument(
        "--watch",
        type=reading.text,
        action="append",
        default=[],
        metavar="TEXT",
        help="asked after every unit and told when its answer turns to yes, as 'Tell me when you "
        "see a red star.'; may be given several times",
    )


def add_devices(commands: Any) -> None:
    """``omnilive devices``."""
    devices = commands.add_parser(
        "devices",
        help="list cameras and microphones",
        usage="omnilive devices [OPTIONS]",
        description="List cameras and microphones, each tried for a moment; a star marks what is "
        "taken where nothing else is said. Exit code 1 if none works.",
        formatter_class=formatter,
    )
    devices.set_defaults(command="devices")
    devices.add_argument("--jsonl", action="store_true", help="one JSON object a line on stdout")
    add_debug(devices)


def add_doctor(commands: Any) -> None:
    """``omnilive doctor``."""
    doctor = commands.add_parser(
        "doctor",
        help="try every part on this machine",
        usage="omnilive doctor [OPTIONS]",
        description="Try every part on this machine: backends against float64, cameras, "
        "microphones, turn taking, voice, terminal; and say what to do where one fails. Exit code "
        "1 if one that is there does not work.",
        formatter_class=formatter,
    )
    doctor.set_defaults(command="doctor")
    doctor.add_argument(
        "--backend", choices=BACKENDS, default="auto", help="check one alone (default: all)"
    )
    add_debug(doctor)
