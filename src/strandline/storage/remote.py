"""ObjectStores in S3, GCS, Azure and memory. The only module that imports obstore."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore import exceptions
from obstore.store import MemoryStore, from_url

from strandline.core.errors import (
    AccessError,
    ConfigurationError,
    ConflictError,
    NotFoundError,
    StrandlineError,
    UnavailableError,
)
from strandline.core.failure import without_secrets
from strandline.core.urls import check_url
from strandline.storage.base import ObjectInfo, ObjectStore
from strandline.storage.local import LocalStore, downloaded, hashed_chunks
from strandline.storage.logged import LoggedStore, split_options

_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 4
_REMOTE_SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
_SAME_SCHEMES = {"s3a": "s3", "abfs": "abfss"}
"""Hadoop's schemes, and the usual ones for the same storage."""
_CLIENT_OPTIONS = ("allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "timeout", "user_agent")
_COPYING = ("s3", "gs")
"""Schemes whose storage copies an object before it answers. Azure may answer earlier, which obstore does not report."""
_DECLINED = re.compile(r"status code: (4(?!08|29)\d\d|501)\b")
"""An answer that a retry does not change."""
_FORBIDDEN = re.compile(r"status code: 40[13]\b")
_METADATA_SERVICE = re.compile(r"/latest/api/token|/latest/meta-data|169\.254\.169\.254|metadata\.google\.internal")
"""Where a client asks for the credentials of the machine if it has no others."""
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
}
"""The variables of the environment with credentials, by scheme; others are Azure's."""
_HINT = "check path, credentials and options"
_HINTS = {
    "NoSuchBucket": "create the bucket, or correct the url",
    "ContainerNotFound": "create the container, or correct the url",
    "ExpiredToken": "renew the credentials; a job takes new ones when it is started again",
    "RequestTimeTooSkewed": "set the clock of this machine: the service's differs by more than 15 minutes",
}
_REFUSALS = frozenset((
    "AccessDenied", "AllAccessDisabled", "AuthenticationFailed", "AuthorizationHeaderMalformed", "ContainerNotFound",
    "ExpiredToken", "InvalidAccessKeyId", "InvalidBucketName", "InvalidToken", "NoSuchBucket", "PermanentRedirect",
    "SignatureDoesNotMatch",
))  # fmt: skip
"""Codes of answers that stay the same until the user changes the setup."""
_OPEN_OPTIONS = ("endpoint", "region", "default_region", *_CLIENT_OPTIONS)
"""Options whose values are no secrets, with any service's prefix."""
_WRONG_SETUP = (
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
    exceptions.UnknownConfigurationKeyError,
    exceptions.InvalidPathError,
    exceptions.NotSupportedError,
    NotImplementedError,
    ValueError,
)


def open_store(url: str, options: Mapping[str, str] | None = None, *, fsync: bool = True) -> ObjectStore:
    """Open the storage at a plain path, or a file://, s3://, gs://, az:// or memory:// url.

    `options` are the storage's own settings (`access_key_id`, `endpoint`, …); missing ones come from the environment. A
    local directory is made if it is absent; with `fsync` False, the operating system decides when its files become
    durable; other storage ignores `fsync`. Options that begin with `kafka.` are of the client for logs in Kafka. Raises
    ConfigurationError for a url or options that cannot work, and UnavailableError for a directory that cannot be made.
    Neither the store's `url` nor its errors contain secrets.
    """
    config, of_log = split_options(options or {})
    return LoggedStore(_open(url, config, fsync=fsync), of_log)


def _open(url: str, config: Any, *, fsync: bool) -> ObjectStore:
    parts = urlsplit(check_url(url))
    if "://" not in url or parts.scheme == "file":
        path = Path(unquote(parts.path) if parts.scheme == "file" else url)
        if not url or parts.netloc not in ("", "localhost") or (parts.scheme == "file" and not parts.path):
            raise ConfigurationError(f"storage {url!r} names no local directory", hint="write file:///absolute/path")
        return LocalStore(path.expanduser(), fsync=fsync)
    if parts.scheme == "memory":
        return _ObstoreStore(MemoryStore(), "memory://", hide=str)
    if parts.scheme not in _REMOTE_SCHEMES:
        raise ConfigurationError(
            f"storage '{parts.scheme}://…': unknown scheme '{parts.scheme}'",
            hint=f"use a path, file://, memory:// or one of {', '.join(s + '://' for s in _REMOTE_SCHEMES)}",
        )
    public_url = remote_url(url)
    scheme, _, rest = public_url.partition("://")
    bucket = f"{scheme}://{rest.partition('/')[0]}"
    is_open = re.compile(rf"(?:aws_|google_|azure_)?(?:{'|'.join(_OPEN_OPTIONS)})", re.IGNORECASE).fullmatch
    secrets = [parts.password or "", *(value for key, value in config.items() if not is_open(key))]
    hide = partial(without_secrets, secrets=secrets)
    client: Any = {key: config.pop(key) for key in _CLIENT_OPTIONS if key in config}

    def at(url: str) -> Any:
        return from_url(url, config=config or None, client_options=client or None)

    try:
        store = at(url)
        whole_bucket = _Bucket(bucket, config, client, cache(partial(at, bucket))) if scheme in _COPYING else None
    except Exception as error:
        raise ConfigurationError(
            f"storage {public_url} cannot be opened: {hide(_first_line(error))}", hint="check the url and its options"
        ) from None
    return _ObstoreStore(store, public_url, hide=hide, bucket=whole_bucket)


def is_remote(url: str) -> bool:
    """Whether a url is of remote storage, which needs a client."""
    return urlsplit(url).scheme in _REMOTE_SCHEMES


def remote_url(url: str) -> str:
    """Return the canonical url of a place in remote storage, without secrets.

    >>> remote_url("s3a://key:secret@bucket/a/"), remote_url("abfss://container@account.dfs.core.windows.net/a")
    ('s3://bucket/a', 'abfss://container@account.dfs.core.windows.net/a')
    """
    parts = urlsplit(url)
    scheme = _SAME_SCHEMES.get(parts.scheme, parts.scheme)
    user, at, host = parts.netloc.rpartition("@")
    # Before an account of Azure, the url has the container, which is not secret.
    is_container = scheme == "abfss" and ":" not in user
    return f"{scheme}://{user + at if is_container else ''}{host}{parts.path.rstrip('/')}"


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].strip()


def _answer(error: BaseException) -> tuple[str, str]:
    """Return the code of a service's answer, "" if the error has none, and its message."""
    text = str(error)
    matches = [re.search(rf"<{tag}>([^<]*)</{tag}>", text) for tag in ("Code", "Message")]
    code, message = (match[1].strip() if match else "" for match in matches)
    return code, f"{code}: {message}" if code else _first_line(error)


@dataclass(frozen=True)
class _Bucket:
    """A bucket and its credentials: objects can be copied between stores whose buckets are equal."""

    url: str
    config: Mapping[str, str] = field(repr=False)
    client: Mapping[str, str]
    store: Callable[[], Any] = field(repr=False, compare=False)
    """Opens the bucket, once and when needed: a client takes ten milliseconds, and few stores copy."""


class _ObstoreStore:
    """One obstore store as an ObjectStore."""

    def __init__(self, store: Any, url: str, *, hide: Callable[[str], str], bucket: _Bucket | None = None) -> None:
        """`bucket` is the bucket of the store, if objects can be copied in it."""
        self._store = store
        self.url = url
        self._hide = hide
        self._bucket = bucket
        self._has_answered = False
        """Whether an operation has succeeded: there are credentials."""
        self._is_s3 = url.startswith("s3://")
        self._gives_reasons = False
        """Whether an answer that there is no such object had S3's code of the reason, as all others then must."""

    def put(self, path: str, data: bytes) -> None:
        with self._errors(path, writing=True):
            obstore.put(self._store, path, data, max_concurrency=_PARTS_AT_ONCE)

    def create(self, path: str, data: bytes) -> None:
        try:
            with self._errors(path, writing=True, creating=True):
                obstore.put(self._store, path, data, mode="create", use_multipart=False)
        except ConflictError:
            # S3 gives the same answer to concurrent writes, of which all may have failed.
            try:
                self.head(path)
            except NotFoundError:
                raise UnavailableError(f"{self.url}/{path}: another write of it was under way") from None
            raise

    def put_file(self, path: str, source: Path) -> str:
        if not source.is_file():
            raise NotFoundError(f"{source}: no such local file to upload to {self.url}/{path}")
        with self._errors(path, writing=True):
            sha256 = hashlib.sha256()
            # The library keeps a part in memory until it is stored: no retry of its own reads the file again.
            obstore.put(
                self._store, path, hashed_chunks(source, _PART_BYTES, sha256),
                use_multipart=source.stat().st_size > _PART_BYTES, chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )  # fmt: skip
            return sha256.hexdigest()

    def take(self, path: str, source: ObjectStore, source_path: str) -> bool:
        """Have the storage copy an object between two folders of one bucket."""
        if not isinstance(source, _ObstoreStore) or self._bucket is None or self._bucket != source._bucket:
            return False
        with self._errors(path, writing=True):
            try:
                obstore.copy(self._bucket.store(), source._in_bucket(source_path), self._in_bucket(path))
            except (FileNotFoundError, *_WRONG_SETUP):
                return False
            except exceptions.GenericError as error:
                if _DECLINED.search(str(error)):
                    # S3 does so for more than 5 GiB.
                    return False
                raise
        return True

    def _in_bucket(self, path: str) -> str:
        return f"{self._store.prefix}/{path}" if self._store.prefix else path

    def get(self, path: str) -> bytes:
        with self._errors(path):
            return bytes(obstore.get(self._store, path).bytes())

    def get_file(self, path: str, target: Path) -> None:
        with self._errors(path):
            stream = obstore.get(self._store, path).stream(_PART_BYTES)
            with downloaded(target) as file:
                for chunk in stream:
                    file.write(chunk)

    def head(self, path: str) -> ObjectInfo:
        try:
            with self._errors(path, has_reason=False):
                return _info(obstore.head(self._store, path))
        except NotFoundError:
            if not self._is_s3:
                raise
        # The answer to HEAD has no reason, and may be a gateway's. The body is not read.
        with self._errors(path):
            return _info(obstore.get(self._store, path).meta)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._errors(prefix):
            for batch in obstore.list(self._store, prefix.strip("/") or None):
                yield from map(_info, batch)

    def delete(self, paths: Iterable[str]) -> None:
        wanted = list(paths)
        if not wanted:
            return
        with self._errors(wanted[0], writing=True):
            try:
                obstore.delete(self._store, wanted)
            except FileNotFoundError as error:
                self._check_reason(error, wanted[0])
                # In storage without bulk deletion, the first absent object ends the call: the others may remain.
                for path in wanted:
                    with self._errors(path, writing=True):
                        try:
                            obstore.delete(self._store, path)
                        except FileNotFoundError as error:
                            self._check_reason(error, path)

    def _check_reason(self, error: FileNotFoundError, path: str) -> None:
        """Raise UnavailableError if the answer that there is no such object is not S3's, but that of a gateway."""
        code, message = _answer(error)
        if code:
            self._gives_reasons = True
        elif self._is_s3 and self._gives_reasons:
            raise UnavailableError(
                f"{self.url}/{path}: the answer is 404, and not S3's: {self._hide(message)}",
                hint="a gateway before the storage may have no route to it",
            )

    @contextmanager
    def _errors(
        self, path: str, *, writing: bool = False, creating: bool = False, has_reason: bool = True
    ) -> Iterator[None]:
        """Convert obstore's errors into ours; others pass."""
        try:
            yield
            self._has_answered = True
        except StrandlineError:
            raise
        except Exception as error:
            where = f"{self.url}/{path}"
            code, message = _answer(error)
            what = self._hide(message)
            is_refused = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError) or (
                isinstance(error, exceptions.GenericError) and _FORBIDDEN.search(str(error))
            )
            # Once there were some, the service may only be away for a moment.
            if not self._has_answered and _METADATA_SERVICE.search(str(error)):
                raise AccessError(
                    f"{where}: there are no credentials: storage_options and the environment have none, and this "
                    "machine has no role of its own",
                    hint=_credentials_hint(self.url),
                ) from None
            if code in _REFUSALS or is_refused:
                raise AccessError(f"{where}: {what}", hint=_HINTS.get(code, _HINT)) from None
            # S3 may also answer that another write of the object is under way.
            if creating and isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
                raise ConflictError(f"{where}: an object is already there") from None
            if isinstance(error, FileNotFoundError) and has_reason:
                self._check_reason(error, path)
            if isinstance(error, FileNotFoundError) and not writing:
                raise NotFoundError(f"{where}: no such object") from None
            # A service may forget an upload in parts, or that it has completed it: a retry begins a new one.
            if isinstance(error, FileNotFoundError) and code != "NoSuchUpload":
                raise ConfigurationError(f"{where}: cannot be written: {what}", hint="does the bucket exist?") from None
            if isinstance(error, _WRONG_SETUP):
                raise ConfigurationError(f"{where}: {what}", hint=_HINT) from None
            if isinstance(error, exceptions.BaseError | OSError):
                raise UnavailableError(f"{where}: {what}") from None
            raise


def _credentials_hint(url: str) -> str:
    names = _CREDENTIALS.get(url.partition("://")[0], "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY")
    return (
        f"set {names} for the driver and the executors, or give options of these names, as in "
        "sl.Checkpoints(url, storage_options={…}); files of other tools, such as ~/.aws/credentials, are not read"
    )


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))
