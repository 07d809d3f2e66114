"""The records of a made-up month of training with a failure every few hours."""

from __future__ import annotations

import random

from jaxckpt.ettr.records import Record

GB = 10**9


def month_records(days: float = 30.0, seed: int = 5) -> list[Record]:
    """A save every five minutes, written in two; steps of five seconds, recorded each minute."""
    chance = random.Random(seed)
    found: list[Record] = []
    wall, durable, number = 1.7e9, 0, 0
    end = wall + days * 86400
    while wall < end:
        session = f"{number:04x}"
        number += 1
        life = min(chance.expovariate(1 / 14_000) + 400, end - wall)
        found.append(
            Record(session, 0.0, "start", {"wall": wall, "processes": 2048, "devices": 16384})
        )
        t, step = 60.0, durable
        if durable:
            facts = {"step": durable, "secs": 45.0, "bytes": 900 * GB}
            found.append(Record(session, t, "restore", facts))
            t += 45.0
        minute = 0
        while t + 60 < life:
            t += 60
            facts = {"first": step, "last": step + 12, "secs": 60.0}
            found.append(Record(session, t, "steps", facts))
            step, minute = step + 12, minute + 1
            if minute % 5 == 2 and step - 24 > durable:
                durable = step - 24
                facts = {"step": durable, "write_secs": 110.0, "bytes": 900 * GB}
                found.append(Record(session, t, "durable", facts))
            if minute % 5 == 0:
                facts = {"step": step, "stall": 2.5, "waited": 0.5, "bytes": 900 * GB}
                found.append(Record(session, t, "save", facts))
                t += 2.5
        wall += life + chance.uniform(120, 1500)
    return found
