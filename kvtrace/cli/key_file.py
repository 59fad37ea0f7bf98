"""Files that hold the secret key of hashes."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from kvtrace.errors import KvtraceError

SHORTEST_KEY_BYTES = 16


def read_key(path: Path, size: int) -> bytes:
    """Return the key that a file stands for; the file is created if missing.

    Raises:
        KvtraceError: It cannot be read or created, or is too short.
    """
    try:
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(size) + "\n")
        secret = path.read_bytes()
    except OSError as error:
        raise KvtraceError(f"cannot use {path} as a key file: {error.strerror}") from error
    if len(secret.strip()) < SHORTEST_KEY_BYTES:
        raise KvtraceError(
            f"{path} is too short: it has {len(secret.strip())} bytes, expected at least {SHORTEST_KEY_BYTES}"
        )
    return hashlib.blake2b(secret, digest_size=size).digest()
