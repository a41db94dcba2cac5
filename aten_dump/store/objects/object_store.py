"""One small interface to an object store (list, head, get, put, delete), implemented by obstore.

Credentials and endpoints come from the environment, under the names that the vendors' own tools read
(``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_ACCOUNT_NAME`` ...).

obstore retries what a server may answer better the next time (5xx, dropped connections) a few times by itself; what it
raises then becomes an `ObjectStoreError` here, with what to do.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...errors import ConfigError, StoreError

_ENDPOINTS: Final = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")
_VENDORS: Final = ("AWS_", "GOOGLE_", "AZURE_")  # of variables
_RETRIES: Final = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
_TIMES: Final = {"connect_timeout": "5s", "timeout": "120s"}
_PART_BYTES: Final = 8 << 20  # of a multipart upload; S3 takes 10,000 parts
_PARTS_AT_ONCE: Final = 4
_DELETED_AT_ONCE: Final = 1000
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")

# What an answer holds, what that means, and what to do. The first that matches counts.
_MEANINGS: Final = (
    (r"NoSuchBucket|ContainerNotFound|specified bucket does not exist", "the bucket does not exist: make it first, or "
     "correct the URL"),
    (r"169\.254\.169\.254|metadata\.google|token request|Account must be specified|MissingAccount|Unauthenticated",
     "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, GOOGLE_APPLICATION_CREDENTIALS, or "
     "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
    (r"InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken|AuthenticationFailed|\b401\b",
     "the credentials are not valid here, or have expired: renew them"),
    (r"AccessDenied|PermissionDenied|\b403\b", "permission is denied: these credentials may not do that in this "
     "bucket; allowed must be list, get, put and delete below the path"),
    (r"PermanentRedirect|AuthorizationHeaderMalformed|\b301\b", "the bucket is in another region: set AWS_REGION"),
    (r"allow_http|scheme is not https|URL scheme is not allowed", "the endpoint is not https: set AWS_ALLOW_HTTP=true "
     "if that is meant"),
    (r"error sending request|[Cc]onnect|dns|timed? ?out", "the store cannot be reached: see to the network, and to "
     "AWS_ENDPOINT_URL where it is no store of Amazon's"),
)  # fmt: skip
_FINAL: Final = 4  # of these: what does not pass by itself


class ObjectStoreError(StoreError):
    """A request failed, after retries; `is_final` where another try would not help."""

    is_final = False


class Listed(NamedTuple):
    """One object of a listing."""

    key: str
    nbytes: int
    changed_unix: float
    tag: str | None  # changes when the object does


class ObjectStore:
    """The objects of one bucket."""

    def __init__(self, address: str) -> None:
        """Take a bucket's URL, as ``s3://bucket``; nothing is asked of it yet.

        Raises:
            ConfigError: obstore is not installed, or the address makes no sense to it.
        """
        try:
            import obstore
            from obstore.exceptions import BaseError
            from obstore.store import from_url
        except ImportError as error:
            message = f"{address} is in an object store, which needs obstore: pip install 'aten-dump[remote]'"
            raise ConfigError(message) from error
        self.address = address
        self._api = obstore
        self._errors = (BaseError, OSError, ValueError)
        options: dict[str, Any] = {"client_options": dict(_TIMES), "retry_config": _RETRIES}
        if any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS):
            options["client_options"]["allow_http"] = True
        with self._errors_named("open", ""):
            self._store: Any = from_url(address, **options)

    def list(self, prefix: str) -> Iterator[Listed]:
        """Yield all objects below a folder, in order of their keys."""
        with self._errors_named("list", prefix):
            for page in self._api.list(self._store, prefix or None):
                yield from map(_listed, page)

    def head(self, key: str) -> Listed | None:
        """Return one object; None where there is none."""
        try:
            with self._errors_named("read", key):
                return _listed(self._api.head(self._store, key))
        except FileNotFoundError:
            return None

    def get(self, key: str, start: int = 0, stop: int | None = None, tag: str | None = None) -> memoryview:
        """Return bytes [start, stop) of an object, which must still have its tag; all of it without `stop`.

        Raises:
            FileNotFoundError: there is no such object.
            ObjectStoreError: it cannot be read, or was replaced meanwhile.
        """
        options: Any = {} if tag is None else {"if_match": tag}
        if stop is not None:
            options["range"] = (start, stop)
        with self._errors_named("read", key):
            return memoryview(self._api.get(self._store, key, options=options).bytes())

    def put(self, key: str, data: bytes | Path) -> None:
        """Store bytes, or those of a file, in parts where they are many; nobody sees them before they are all there."""
        with self._errors_named("write", key):
            self._api.put(self._store, key, data, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects, those that are not there included."""
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            with self._errors_named("delete", keys[start]), contextlib.suppress(FileNotFoundError):
                self._api.delete(self._store, list(keys[start : start + _DELETED_AT_ONCE]))

    @contextlib.contextmanager
    def _errors_named(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            if isinstance(error, (ConfigError, StoreError)):
                raise
            url = f"{self.address}/{key}" if key else self.address
            text = str(error).partition("\n\nDebug source")[0]
            number, meaning = _meaning_of(text)
            if isinstance(error, FileNotFoundError) and number >= _FINAL:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from error
            if type(error).__name__ == "PreconditionError":
                meaning = "it was replaced while it was read; open the dump again"
            told = ObjectStoreError(errno.EIO, f"cannot {action} {url}: {meaning or _shortened(text)}")
            told.is_final = number < _FINAL
            raise told from error


def _listed(found: Any) -> Listed:
    return Listed(found["path"], found["size"], found["last_modified"].timestamp(), found["e_tag"])


def _meaning_of(text: str) -> tuple[int, str]:
    """Return which of `_MEANINGS` an answer has, and what it says."""
    for number, (pattern, meaning) in enumerate(_MEANINGS):
        if re.search(pattern, text):
            return number, meaning
    return len(_MEANINGS), ""


def _shortened(text: str) -> str:
    """Return the code of an answer in XML, or the first line of another."""
    code = _CODE.search(text)
    return code[1] if code else text.partition("\n")[0][:300]


@lru_cache(64)
def _opened(address: str, _process: int, _variables: tuple[tuple[str, str], ...]) -> ObjectStore:
    return ObjectStore(address)


def store_at(address: str) -> ObjectStore:
    """Return the store of a bucket: another one where credentials were set meanwhile, and in a forked child, as
    connections do not survive a fork.
    """
    named = tuple(item for item in os.environ.items() if item[0].startswith(_VENDORS))
    return _opened(address, os.getpid(), named)
