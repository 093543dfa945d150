"""Records made by hand."""


def record(subject, turn, ops_per_s, cell=None, **more):
    """Returns a record as the harness writes it."""
    return {"form": 1, "bench": "nbd", "command": "python3 benches nbd", "commit": "c" * 40,
            "dirty": False, "binary": {"path": "bimetal", "sha256": "aa"},
            "host": {"cpu": "x", "cores": 2, "memory_bytes": 2**30, "kernel": "6.18"},
            "priority": "SCHED_OTHER nice 0", "time": f"2026-01-0{turn + 1}T00:00:00+00:00",
            "round": turn, "cell": cell or {"conns": 1, "depth": 1, "rw": "randread"},
            "subject": subject, "values": {"ops_per_s": ops_per_s}, **more}
