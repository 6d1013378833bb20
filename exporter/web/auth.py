"""Basic authentication that does not reveal which users exist, nor spends much processor time on wrong passwords.

bcrypt is slow on purpose, so a flood of wrong passwords is a flood of work. Therefore:

- one password is checked at a time, on a thread; after a wrong one the worker rests as long as the check took;
- right passwords are cached apart from wrong ones, so that no flood evicts them: an admitted scraper never waits again;
- what is not cached waits in `CheckQueue`, which is fair between addresses and bounded;
- a check outlives the connection that asked for it, so that its verdict is there when the client comes again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeVar

from exporter.daemon import in_thread
from exporter.web.config_file import RateLimit

Verdict = Literal["admitted", "refused", "busy"]

CACHED_VERDICTS: Final = 100
"""Of right passwords, and as many of wrong ones."""
MAX_WAITING: Final = 256
REMEMBERED_RETRIES: Final = 10_000
"""More than a hundred new passwords a second make between two visits of a scraper."""
REMEMBERED_PEERS: Final = 1000
WAIT_SECONDS: Final = 4.0
"""How long a request waits for its verdict before it is answered "busy"."""
FAILED_CHECK_PAUSE_SECONDS: Final = 0.1
BCRYPT_BYTES: Final = 72
"""What bcrypt looks at; htpasswd and Go cut longer passwords there in silence, the Python library refuses them."""
KEY_BYTES: Final = 16

DUMMY_DIGEST: Final = b"QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
"""Salt and digest of no user's hash; the toolkit compares the passwords of unknown users with the same one."""

Compare = Callable[[bytes, bytes], bool]
"""Password and bcrypt hash to whether they match; blocks."""
K = TypeVar("K")
V = TypeVar("V")


class Recent(dict[K, V]):
    """The `most` entries that were put last."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def put(self, key: K, value: V) -> None:
        """Set the entry and make it the newest; the oldest is dropped where there are too many."""
        self.pop(key, None)
        self[key] = value
        if len(self) > self._most:
            del self[next(iter(self))]


@dataclass(slots=True, eq=False)
class Check:
    """A password to be compared with `hashes`; the first of them decides, and only if the user is `known`."""

    key: bytes
    peer: str
    password: bytes = field(repr=False)
    hashes: tuple[bytes, ...] = field(repr=False)
    known: bool
    verdict: asyncio.Future[Verdict]
    retried: bool = False
    """The client asked before and was answered "busy"."""

    def run(self, compare: Compare) -> bool:
        """Whether the password is right. Blocks as long as for the costliest user's hash, unless it is."""
        if compare(self.password, self.hashes[0]) and self.known:
            return True
        for hashed in self.hashes[1:]:
            compare(self.password, hashed)
        return False


class CheckQueue:
    """The checks that wait: in which order they are made, and which is given up when there are too many.

    First the address that was served longest ago, of those the one with the fewest checks waiting. Within an address a
    retried check (a scraper comes again with the same password, a guesser has no reason to), then the newest: there the
    client is still waiting.
    """

    def __init__(self) -> None:
        self._waiting: list[Check] = []  # oldest first
        self._served: Recent[str, int] = Recent(REMEMBERED_PEERS)  # peer to the number of its last check
        self._checks = 0

    def add(self, check: Check) -> Check | None:
        """Append a check; the one that is given up for it, which is the oldest of the address with the most."""
        self._waiting.append(check)
        if len(self._waiting) <= MAX_WAITING:
            return None
        counts = self._count()
        given_up = min(self._waiting[:-1], key=lambda other: (-counts[other.peer], other.retried))
        self._waiting.remove(given_up)
        return given_up

    def take(self) -> Check | None:
        """The check to be made now, which no longer waits; None when there is none."""
        if not self._waiting:
            return None
        counts = self._count()
        check = min(
            reversed(self._waiting),  # the newest first, since the first of equals is taken
            key=lambda other: (self._served.get(other.peer, 0), counts[other.peer], not other.retried),
        )
        self._waiting.remove(check)
        self._checks += 1
        self._served.put(check.peer, self._checks)
        return check

    def _count(self) -> Counter[str]:
        return Counter(check.peer for check in self._waiting)


def bcrypt_matches(password: bytes, hashed: bytes) -> bool:
    """True if the password has this bcrypt hash. Slow on purpose: ~60 ms at cost 10, twice that for each step more."""
    import bcrypt  # noqa: PLC0415  # only where basic_auth_users are configured

    try:
        return bcrypt.checkpw(password[:BCRYPT_BYTES], hashed)
    except ValueError:
        return False


@dataclass(slots=True)
class Passwords:
    """Verdicts on `Authorization` headers. Used on the server's loop only; `compare` runs on a thread."""

    compare: Compare = bcrypt_matches
    clock: Callable[[], float] = time.monotonic
    wait_seconds: float = WAIT_SECONDS
    _salt: bytes = field(default_factory=lambda: os.urandom(32), repr=False)
    _right: Recent[bytes, None] = field(default_factory=lambda: Recent(CACHED_VERDICTS))
    _wrong: Recent[bytes, None] = field(default_factory=lambda: Recent(CACHED_VERDICTS))
    _answered_busy: Recent[bytes, None] = field(default_factory=lambda: Recent(REMEMBERED_RETRIES))
    _pending: dict[bytes, Check] = field(default_factory=dict)  # waiting or being made
    _queue: CheckQueue = field(default_factory=CheckQueue)
    _worker: asyncio.Task[None] | None = None

    async def judge(self, users: Mapping[bytes, bytes], authorization: bytes, peer: str) -> Verdict:
        """The verdict on a header; "busy" if there is none in time. `users` are names and bcrypt hashes."""
        credentials = read_credentials(authorization)
        if credentials is None:
            return "refused"
        user, password = credentials
        key = self._key(user, users.get(user, b""), password)
        if key in self._right:
            return "admitted"
        if key in self._wrong:
            return "refused"
        check = self._pending.get(key)
        if check is None:
            future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
            check = Check(key, peer, password[:BCRYPT_BYTES], hashes_for(users, user), user in users, future)
            self._enqueue(check)
        check.retried = check.retried or key in self._answered_busy
        return await self._verdict_of(check)

    async def _verdict_of(self, check: Check) -> Verdict:
        verdict: Verdict = "busy"
        try:
            # Not `wait_for`: cancelled at the wrong moment, it goes on (in Python 3.11).
            async with asyncio.timeout(self.wait_seconds):
                verdict = await asyncio.shield(check.verdict)
        except TimeoutError:
            pass
        finally:  # also when the client's connection is closed while it waits
            if verdict == "busy":
                self._answered_busy.put(check.key, None)
        return verdict

    def _key(self, *parts: bytes) -> bytes:
        """What is kept instead of a password: of no use to anyone who reads this process's memory later."""
        digest = hashlib.blake2b(key=self._salt, digest_size=KEY_BYTES)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()

    def _enqueue(self, check: Check) -> None:
        self._pending[check.key] = check
        given_up = self._queue.add(check)
        if given_up is not None:
            self._settle(given_up, "busy")
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())

    def _settle(self, check: Check, verdict: Verdict) -> None:
        del self._pending[check.key]
        check.verdict.set_result(verdict)

    async def _work(self) -> None:
        while (check := self._queue.take()) is not None:
            self._settle(check, await self._make(check))

    async def _make(self, check: Check) -> Verdict:
        """The verdict, after a rest where the password is wrong: the next check is chosen before its client is back."""
        begun = self.clock()
        try:
            matches = await in_thread(lambda: check.run(self.compare), "web-password")
        except Exception:  # whatever went wrong, the worker goes on and nobody is admitted
            await asyncio.sleep(FAILED_CHECK_PAUSE_SECONDS)
            return "busy"
        if matches:
            self._right.put(check.key, None)
            return "admitted"
        self._wrong.put(check.key, None)
        await asyncio.sleep(self.clock() - begun)
        return "refused"


def read_credentials(authorization: bytes) -> tuple[bytes, bytes] | None:
    """User and password of a Basic `Authorization` header (RFC 7617); None for anything else."""
    scheme, _, encoded = authorization.partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except binascii.Error:
        return None
    return (user, password) if colon else None


def hashes_for(users: Mapping[bytes, bytes], user: bytes) -> tuple[bytes, ...]:
    """What a password of this user is compared with: its own hash or a dummy, and dummies up to equal work for all.

    The work doubles with each step of cost, so a hash of cost 10 takes dummies of costs 10 and 11 beside it to be as
    much as one of cost 12, the costliest: time reveals neither who is a user nor whose hash is cheap.
    """
    own = users.get(user)
    if own is None:
        return (dummy_hash(users),)
    return (own, *(_dummy(cost) for cost in range(_cost(own), _cost(dummy_hash(users)))))


def dummy_hash(users: Mapping[bytes, bytes]) -> bytes:
    """What an unknown user's password is compared with: as costly as the costliest user's."""
    return _dummy(max(map(_cost, users.values()), default=10))


def _cost(hashed: bytes) -> int:
    return int(hashed.split(b"$")[2])


def _dummy(cost: int) -> bytes:
    return b"$2b$%02d$" % cost + DUMMY_DIGEST


class TokenBucket:
    """`rate_limit`: one request for each of its intervals, `burst` at once. Begins full."""

    def __init__(self, rate: RateLimit, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self._clock = clock
        self._tokens, self._updated = float(rate.burst), clock()

    def take(self) -> bool:
        """True if a request may pass now."""
        now = self._clock()
        self._tokens = min(float(self.rate.burst), self._tokens + (now - self._updated) / self.rate.interval)
        self._updated = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
