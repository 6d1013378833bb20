"""Who may scrape: basic authentication without a user oracle, and without a way to buy our CPU with wrong passwords.

bcrypt is slow on purpose, so a flood of wrong passwords is a flood of work. One comparison runs at a time, on a thread;
after a wrong one the thread rests as long as it worked. A right password is remembered apart from wrong ones, so that
no flood pushes it out: an admitted scraper never waits again. Who is not yet known waits in a queue that a flood keeps
full, hence its order: addresses take turns; within one, a password that was asked about before and got no answer goes
first (a scraper comes again with the same, a guesser has no reason to), then the newest, not the oldest.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from exporter.webanswers import in_thread

Verdict = Literal["in", "refused", "busy"]

REMEMBERED: Final = 100
UNANSWERED: Final = 1000
WAITING: Final = 64
PATIENCE_SECONDS: Final = 4.0
BCRYPT_BYTES: Final = 72
"""What bcrypt looks at; htpasswd and Go cut longer passwords there in silence, the Python library refuses them."""

NOBODY: Final = b"QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
"""Salt and digest of a hash that is nobody's; the toolkit compares unknown users with the same one."""

Compare = Callable[[bytes, bytes], bool]


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
    patience_seconds: float = PATIENCE_SECONDS
    _salt: bytes = field(default_factory=lambda: os.urandom(32), repr=False)
    _right: dict[bytes, None] = field(default_factory=dict)
    _wrong: dict[bytes, None] = field(default_factory=dict)
    _unanswered: dict[bytes, None] = field(default_factory=dict)
    _asked: dict[bytes, asyncio.Future[Verdict]] = field(default_factory=dict)
    _turns: dict[str, list[_Question]] = field(default_factory=dict)
    _worker: asyncio.Task[None] | None = None

    async def judge(self, users: Mapping[bytes, bytes], authorization: bytes, peer: str) -> Verdict:
        """ "in", "refused", or "busy" when too many others are asking. `users` are names and bcrypt hashes."""
        credentials = read_credentials(authorization)
        if credentials is None:
            return "refused"
        user, password = credentials
        hashed = users.get(user, hash_of_nobody(users))
        key = self._key(user, hashed, password)
        if key in self._right:
            return "in"
        if key in self._wrong:
            return "refused"
        if key not in self._asked:
            answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
            self._ask(_Question(key, password, hashed, user in users, key in self._unanswered, answer), peer)
        elif key in self._unanswered:
            self._put_first(key, peer)
        try:
            verdict = await asyncio.wait_for(asyncio.shield(self._asked[key]), self.patience_seconds)
        except TimeoutError:
            verdict = "busy"
        if verdict == "busy":
            _remember(self._unanswered, key, UNANSWERED)
        return verdict

    def _key(self, *parts: bytes) -> bytes:
        """What is remembered instead of a password: of no use to anyone who reads this process's memory later."""
        digest = hashlib.blake2b(key=self._salt)
        for part in parts:
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()

    def _ask(self, question: _Question, peer: str) -> None:
        self._asked[question.key] = question.answer
        waiting = self._turns.setdefault(peer, [])
        # The next is taken from the end: those that ask again, before them the others, each in the order they came.
        waiting.insert(len(waiting) if question.again else sum(not other.again for other in waiting), question)
        if sum(map(len, self._turns.values())) > WAITING:
            self._settle(max(self._turns.values(), key=len).pop(0), "busy")
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())

    def _put_first(self, key: bytes, peer: str) -> None:
        waiting = self._turns.get(peer, [])
        for question in [found for found in waiting if found.key == key]:
            waiting.remove(question)
            waiting.append(replace(question, again=True))

    def _settle(self, question: _Question, verdict: Verdict) -> None:
        del self._asked[question.key]
        question.answer.set_result(verdict)

    def _next(self) -> _Question | None:
        while self._turns:
            peer = next(iter(self._turns))
            waiting = self._turns.pop(peer)
            if not waiting:
                continue
            question = waiting.pop()
            if waiting:
                self._turns[peer] = waiting  # at the end: the other addresses come first
            return question
        return None

    async def _work(self) -> None:
        question = self._next()
        while question is not None:
            verdict, rest = await self._compare(question)
            # Chosen before the answer goes out, or whoever was wrong would be back in time to be the newest.
            following = self._next()
            self._settle(question, verdict)
            await asyncio.sleep(rest)
            question = following or self._next()

    async def _compare(self, question: _Question) -> tuple[Verdict, float]:
        """The verdict, and how many seconds to rest after it."""
        begun = self.clock()
        try:
            matches = await in_thread(lambda: self.compare(question.password, question.hashed), "web-password")
        except Exception:  # whatever went wrong, the worker goes on and nobody gets in
            return "busy", 0.1
        if matches and question.known:
            _remember(self._right, question.key, REMEMBERED)
            return "in", 0.0
        _remember(self._wrong, question.key, REMEMBERED)
        return "refused", self.clock() - begun


@dataclass(frozen=True, slots=True)
class _Question:
    key: bytes
    password: bytes = field(repr=False)
    hashed: bytes = field(repr=False)
    known: bool
    again: bool
    answer: asyncio.Future[Verdict]


def _remember(known: dict[bytes, None], key: bytes, most: int) -> None:
    known.pop(key, None)
    known[key] = None
    if len(known) > most:
        del known[next(iter(known))]


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


def hash_of_nobody(users: Mapping[bytes, bytes]) -> bytes:
    """What an unknown user's password is compared with: as costly as the costliest user's, so time tells nothing."""
    cost = max((hashed.split(b"$")[2] for hashed in users.values()), default=b"10")
    return b"$2b$" + cost + b"$" + NOBODY


@dataclass(slots=True)
class TokenBucket:
    """`rate_limit`: one request per `interval` seconds, `burst` at once."""

    interval: float
    burst: int
    clock: Callable[[], float] = time.monotonic
    _tokens: float = field(init=False)
    _seen: float = field(init=False)

    def __post_init__(self) -> None:
        self._tokens, self._seen = float(self.burst), self.clock()

    def take(self) -> bool:
        """True if a request may pass now."""
        now = self.clock()
        self._tokens = min(float(self.burst), self._tokens + (now - self._seen) / self.interval)
        self._seen = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
