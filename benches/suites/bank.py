"""The database load of `live_cache`: a bank in SQLite.

A transaction reads the balance of an account, moves money from it to another account, and records
that in a history; 80 % of the accounts drawn are among the first 20 %. SQLite has a log of changes
(WAL), which it copies to the tables when the log has 1,000 pages, and almost no memory of its own.
All random numbers are seeded. The sum of all money must not change, which is how a database is
checked afterwards.

This module imports nothing of the harness, because it runs in a small memory group.
"""

import json
import random
import sqlite3
import subprocess
import sys
import time

ACCOUNTS = 150_000
FILLER = "x" * 380
WARMING = 20_000
SEED = 2009


def account(draws):
    """An account: 80 % of all draws are among the first 20 %."""
    part = ACCOUNTS // 5
    return draws.randrange(part) if draws.random() < 0.8 else draws.randrange(part, ACCOUNTS)


def connect(path, sync):
    """The database, with almost no cache of its own."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("pragma journal_mode = wal")
    db.execute(f"pragma synchronous = {sync}")
    db.execute("pragma cache_size = 64")
    return db


def transact(db, draws, number):
    """One transaction."""
    payer, payee, amount = account(draws), account(draws), draws.randrange(1, 1000)
    db.execute("begin immediate")
    db.execute("select balance from accounts where id = ?", (payer,)).fetchone()
    db.execute("update accounts set balance = balance - ? where id = ?", (amount, payer))
    db.execute("update accounts set balance = balance + ? where id = ?", (amount, payee))
    db.execute("insert into history values (?, ?, ?, ?)", (number, payer, payee, amount))
    db.execute("commit")


def warm(path, sync, first, count):
    """Reads accounts, then runs transactions, without printing anything."""
    draws, db = random.Random(SEED), connect(path, sync)
    for _ in range(WARMING):
        db.execute("select balance from accounts where id = ?", (account(draws),)).fetchone()
    db.close()
    load(path, sync, first, count)


def load(path, sync, first, count):
    """Runs transactions, then flushes everything to the drive; prints the duration of each and of
    all."""
    draws = random.Random(SEED + first)
    db, times_s, began = connect(path, sync), [], time.monotonic()
    for number in range(first, first + count):
        start = time.monotonic()
        transact(db, draws, number)
        times_s.append(time.monotonic() - start)
    db.close()
    subprocess.run(["sync", "-f", path], check=True)
    print(json.dumps({"times_s": times_s, "all_s": time.monotonic() - began}))


def make(path):
    """The tables, filled."""
    db = connect(path, "off")
    db.execute("create table accounts (id integer primary key, balance integer, filler text)")
    columns = "number integer, payer integer, payee integer, amount integer"
    db.execute(f"create table history ({columns})")
    db.execute("begin")
    rows = ((number, FILLER) for number in range(ACCOUNTS))
    db.executemany("insert into accounts values (?, 0, ?)", rows)
    db.execute("commit")
    db.close()


def check(path, transactions):
    """Checks the tables while no program has them open: no money and no history may be missing."""
    db = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
    found = [db.execute(question).fetchone()[0] for question in
             ("pragma integrity_check", "select sum(balance) from accounts",
              "select count(*) from history", "select max(number) + 1 from history")]
    db.close()
    if found != ["ok", 0, transactions, transactions]:
        raise SystemExit(f"the database is wrong: {found}")


def command():
    """Runs `warm` or `load` as given on the command line: WHAT DATABASE SYNC FIRST COUNT."""
    what, path, sync, first, count = sys.argv[1:]
    {"warm": warm, "load": load}[what](path, sync, int(first), int(count))
