"""Certificates of one run, so that JAX's coordination service encrypts, and speaks to processes of the job alone.

Each run has a certificate authority, whose key follows from a secret: every machine's launcher makes it by itself, and
nothing of it travels. JAX 0.12 and newer use what is made here; the library `cryptography` makes it.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from jaxtribute._src.addons.launcher.options import Options
from jaxtribute._src.addons.messaging.certificates import AUTHORITY, CERTIFICATE, FILES, KEY

PREFIX = "JAX_MTLS_PEER_URI_PREFIX"
VARIABLES = (*FILES, PREFIX)
_FIRST_JAX = (0, 12)
# Wide, as the clock of a machine may be wrong: what a certificate is good for ends with its run.
_FROM, _TO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(2100, 1, 1, tzinfo=dt.UTC)


_USES = (
    "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign crl_sign "
    "encipher_only decipher_only".split()
)


def secret_of_run(options: Options, run: str, environment: Mapping[str, str] | None = None) -> bytes | None:
    """Secret from which the certificates of a run follow; None if it has none.

    A machine alone needs no more than the run's number, which it tells nobody; several need the launchers' key. Whoever
    sets JAX's variables has certificates of their own, or wants none if they are empty.

    Args:
      options: the launch.
      run: a random number of this run, in letters.
      environment: where JAX's variables may stand; this process's environment by default.
    """
    environment = os.environ if environment is None else environment
    known = options.nodes == 1 or options.key is not None
    given = not environment.keys().isdisjoint(VARIABLES)
    if not run or not known or given or not _jax_can() or find_spec("cryptography") is None:
        return None
    return hmac.new(options.key or b"", b"certificates of run " + run.encode(), hashlib.sha512).digest()


def open_to_others(options: Options) -> str | None:
    """Says what of a job on several machines is not encrypted and could be; None if nothing is."""
    if options.nodes == 1 or not os.environ.keys().isdisjoint(VARIABLES):
        return None
    if options.key is None:
        return (
            "there is no --key: whoever reaches these machines' ports can join or stop the job. HINT: give all "
            "launchers the same --key FILE, or leave it so in a network of their own."
        )
    if not _jax_can():
        return (
            f"--key keeps strangers from the launchers; the workers' coordination is not encrypted, which JAX "
            f"{version('jax')} cannot. HINT: install JAX 0.12 or newer, or encrypt below it (WireGuard, IPsec)."
        )
    if find_spec("cryptography") is None:
        return (
            "--key keeps strangers from the launchers; the workers' coordination is not encrypted. HINT: pip install "
            "-e '.[tls]' in a clone."
        )
    return None


def secret_of_islands(key: bytes, addresses: Sequence[str]) -> bytes:
    """Secret from which the certificates of islands on several machines follow, of which each makes its own."""
    return hmac.new(key, b"certificates of islands " + ",".join(addresses).encode(), hashlib.sha512).digest()


def write_certificates(secret: bytes, folder: Path) -> dict[str, str]:
    """Makes a certificate for the processes of this machine.

    Args:
      secret: what `secret_of_run` gave.
      folder: one that nobody else can read; the files go there.

    Returns:
      The environment that tells JAX of them.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    run = hashlib.sha256(secret).hexdigest()[:32]
    # One of the numbers below the order of the curve's group, which begins with 32 ones.
    number = int.from_bytes(hmac.new(secret, b"authority", hashlib.sha256).digest()) >> 33
    authority, own = ec.derive_private_key(number + 1, ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"jaxtribute run {run}")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "jaxtribute worker")])
    prefix = f"jaxtribute://{run}/"

    def certificate(name: x509.Name, key: ec.EllipticCurvePublicKey, *extensions: x509.ExtensionType) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(_FROM)
            .not_valid_after(_TO)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=True)
        return builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"{prefix}worker")])
    secret_key = own.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # The authority may sign certificates of processes and nothing else, below it no further authority.
    signs = dict.fromkeys(_USES, False) | {"key_cert_sign": True}
    limits = x509.BasicConstraints(ca=True, path_length=0), x509.KeyUsage(**signs)
    texts = {
        CERTIFICATE: certificate(subject, own.public_key(), names),
        KEY: secret_key,
        AUTHORITY: certificate(issuer, authority.public_key(), *limits),
    }
    for name, text in texts.items():
        (folder / name).write_bytes(text)
    return {PREFIX: prefix, **{name: str(folder / name) for name in texts}}


def _jax_can() -> bool:
    """True if the JAX that is installed can encrypt its coordination service; it is not imported."""
    try:
        numbers = version("jax").split(".")[:2]
        return tuple(map(int, numbers)) >= _FIRST_JAX
    except (PackageNotFoundError, ValueError):
        return False
