"""A client that isn't redlock: redis-py's Lock, in a loop, on the key of a lock.

plain.py KEY NAME: reads where to connect from $CHAOS_DIR/plain, and adds a line to $CHAOS_DIR/plain.log for each time
that it had the lock, with its signs of life, or that it may have had it without knowing: where that was, and what
went wrong.
"""

import os
import random
import sys
import time
from pathlib import Path

import redis

DIR = Path(os.environ["CHAOS_DIR"])
KEY, NAME = sys.argv[1:]
MS = 1_000_000


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def log(client, ttl, began, beats, error=None):
    where = client.connection_pool.connection_kwargs
    periods = ",".join(f"{first}:{last}" for first, last in beats)
    wrong = type(error).__name__ if error else ""
    line = f"redis-py@{where['host']}:{where['port']} {os.getpid()} {NAME} {ttl} {began} {now()} {periods} {wrong}\n"
    with open(DIR / "plain.log", "a", encoding="ascii") as file:
        file.write(line)


def connect():
    host, port = (DIR / "plain").read_text(encoding="ascii").split()
    return redis.Redis(host=host, port=int(port), socket_timeout=1, socket_connect_timeout=1)


def until(began, ttl):
    """When a lease of a request that was sent then ends, by our clock."""
    return began + ttl - ttl // 20 - 10 * MS


def hold(lock, ttl, began, beats):
    end = now() + random.choice([1, 20, 200, ttl // MS]) * MS
    deadline = until(began, ttl)
    extends = random.random() < 0.3
    while (moment := now()) < min(end, deadline):
        if beats and moment - beats[-1][1] <= 10 * MS:
            beats[-1][1] = moment
        else:
            beats.append([moment, moment])
        time.sleep(0.002)
        if extends and now() > began + ttl // 3:
            asked = now()
            lock.extend(ttl / 1e9, replace_ttl=True)
            extends, deadline = False, until(asked, ttl)


def turn(client):
    ttl = random.randrange(300, 3000) * MS
    lock = client.lock(KEY, timeout=ttl / 1e9, blocking=False)
    began, beats = now(), []
    try:
        if not lock.acquire():
            return
        hold(lock, ttl, began, beats)
        lock.release()
    except redis.exceptions.LockError as error:
        if beats:
            log(client, ttl, began, beats, error)
    except (redis.exceptions.RedisError, OSError) as error:
        log(client, ttl, began, beats, error)
        raise
    else:
        if beats:
            log(client, ttl, began, beats)


def main():
    client = None
    while not (DIR / "over").exists() and DIR.exists():
        try:
            client = client or connect()
            turn(client)
        except (redis.exceptions.RedisError, OSError, ValueError):
            client = None
        time.sleep(random.uniform(0.02, 0.3))


main()
