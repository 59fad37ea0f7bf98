"""How a recording names tenants, from the command line to vLLM's processes.

A tenant is who a request is for. Its name may be that of a person, or a key, so a recording has a keyed hash of it. The
key is in the environment of the recorded command and in no file of the recording.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from kvtrace.errors import KvtraceError

TENANTS_VARIABLE = "_KVTRACE_TENANTS"
"""Environment variable that carries the options and the key, as JSON. Unset: no tenants are recorded.

The others begin with `KVTRACE_`, which vLLM is asked to copy to Ray's actors. Ray shows everybody what it copies.
"""

HEADER = "X-Tenant-Id"
KEY_BYTES = 32
_HASH_BYTES = 6
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SECRET_HEADER = re.compile(r"auth|cookie|key|token|secret|password|credential", re.IGNORECASE)


@dataclass(frozen=True)
class Tenants:
    """Options of a recording of tenants.

    Attributes:
        naming: `hashed`, `names` (as clients give them) or `off`.
        header: Name of the HTTP header that tells a request's tenant.
        key: Secret of the hashes, in hexadecimal digits. Another one for each recording unless given.
    """

    naming: str = "hashed"
    header: str = HEADER
    key: str = field(default_factory=lambda: secrets.token_hex(KEY_BYTES), repr=False)

    def check(self) -> None:
        """Refuse options that make no sense.

        Raises:
            KvtraceError: The header is no name of one, or its value is a secret that would be recorded.
        """
        if not _TOKEN.fullmatch(self.header):
            raise KvtraceError(f"--tenant-header {self.header!r}: expected the name of a header, such as {HEADER}", 2)
        if self.naming == "names" and _SECRET_HEADER.search(self.header):
            raise KvtraceError(
                f"--tenant-header {self.header} may hold a secret, which --tenants names would write to the recording; "
                "leave that out, and hashes tell its values apart",
                2,
            )

    def to_environment(self) -> dict[str, str]:
        """The environment variable that carries them; none where no tenants are to be recorded."""
        if self.naming == "off":
            return {}
        return {TENANTS_VARIABLE: json.dumps(asdict(self) | ({} if self.naming == "hashed" else {"key": ""}))}

    def name(self, tenant: str) -> str:
        """Name a tenant as the recording does."""
        if self.naming == "names":
            return tenant
        digest = hashlib.blake2b(tenant.encode(errors="surrogatepass"), digest_size=_HASH_BYTES, key=self._key)
        return digest.hexdigest()

    @property
    def _key(self) -> bytes:
        return bytes.fromhex(self.key)


def from_environment(environment: Mapping[str, str]) -> Tenants | None:
    """The options an environment carries; None where it carries none."""
    given = environment.get(TENANTS_VARIABLE)
    return Tenants(**json.loads(given)) if given else None
