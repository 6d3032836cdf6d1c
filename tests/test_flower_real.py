"""The examples as users run them: `flwr run` in a simulation, in a deployment, and with nodes that prove their keys.

Everything is on this machine and offline. Flower starts processes in sessions of their own and leaves some of them
behind; whatever has this test's folder in its environment or its arguments is ended, and looked for, at the end.
"""

from __future__ import annotations

import datetime
import gzip
import hashlib
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from verax.errors import InputError
from verax.ledger import Ledger
from verax.rounds import Rounds

EXAMPLES = Path(__file__).parents[1] / "examples"
TEN = "num-supernodes=10 client-resources-num-cpus=1"
PATIENCE = 400  # seconds for one command on a busy machine

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="processes are looked up in /proc"),
]


@dataclass(frozen=True)
class Place:
    """A folder with a copy of an example, and Flower's files, ports and processes."""

    folder: Path
    example: str
    port: int = field(default_factory=lambda: free_port())
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def app(self) -> Path:
        return self.folder / self.example

    @property
    def env(self):
        own = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(self.port),
            "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
            "RAY_TMPDIR": str(self.folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "NO_COLOR": "1",
        }
        return {**os.environ, **own}

    def flwr(self, *words) -> str:
        """What a `flwr` command prints; it must succeed."""
        done = subprocess.run(
            ["flwr", *words], cwd=self.app, env=self.env, timeout=PATIENCE, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, *words) -> None:
        """A process that stays, with its output in a file of its name and number."""
        with (self.folder / f"{words[0]}-{time.monotonic_ns()}.log").open("wb") as out:
            self.started.append(
                subprocess.Popen(words, cwd=self.app, env=self.env, stdout=out, stderr=out, start_new_session=True)
            )

    def logs(self) -> str:
        """The end of what the processes wrote, to be read when a test fails."""
        found = [*self.folder.glob("*.log"), *self.folder.glob("home/**/*.log")]
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in found)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def processes(folder: Path) -> list[int]:
    """Live processes that belong to a folder, by their environment, their arguments or their parents."""
    found, parents = set(), {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (place / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z" and int(place.name) != os.getpid():
                parents[int(place.name)] = int(parent)
                said = (place / "environ").read_bytes() + (place / "cmdline").read_bytes()
                found |= {int(place.name)} if str(folder).encode() in said else set()
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def ended(folder: Path) -> list[int]:
    """End the folder's processes, first politely; those that are left after that."""
    known: set[int] = set()
    for number, seconds in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
        limit = time.monotonic() + seconds
        known |= set(processes(folder))
        for pid in known:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        while (known := {*processes(folder), *filter(lives, known)}) and time.monotonic() < limit:
            time.sleep(0.2)
    return sorted(known)


def lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def place(request):
    """A short path, as Ray puts sockets below it; nothing that was started there survives the test."""
    folder = Path(tempfile.mkdtemp(prefix="flwr-"))
    there = Place(folder, getattr(request, "param", "flower-quickstart"))
    shutil.copytree(EXAMPLES / there.example, there.app, ignore=shutil.ignore_patterns(".flwr", "paid*", "__pycache__"))
    try:
        yield there
    finally:
        left = ended(folder)
        for process in there.started:
            process.wait(10)
        logs = there.logs()
        shutil.rmtree(folder, ignore_errors=True)
        print(logs)  # pytest shows it where the test fails
    assert left == []


def completed(there: Place) -> bool:
    """Whether the one run that was started came to its end, as Flower says."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        (run,) = json.loads(there.flwr("ls", "--format", "json"))["runs"]
        if run["status"].startswith("finished"):
            return run["status"] == "finished:completed"
        time.sleep(1)
    return False


def paid(there: Place, clients, name="federation-1") -> dict[str, int]:
    """What the ledger says each client earned, once the round is computed again and every receipt is checked."""
    rounds = Rounds(Ledger.open(str(there.app / "paid" / "rounds.db")))
    assert rounds.verify(name) == []
    earned = {}
    for client in clients:
        due, received = rounds.payment(name, client)
        assert due == received
        earned[client] = received
    return earned


def test_ten_simulated_clients_are_paid_and_two_riders_are_not(place):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'verax[simulation]'")
    place.flwr("run", ".", "local", "--stream", "--federation-config", TEN)
    assert completed(place)
    earned = paid(place, [f"client {i}" for i in range(10)])
    assert earned["client 8"] == earned["client 9"] == 0
    assert min(earned[f"client {i}"] for i in range(8)) > 500
    out = place.app / "paid"
    assert "client 8" in (out / "paid.txt").read_text()
    assert "federation, round 1" in (out / "round-1.html").read_text()
    # Flower rewrites a pyproject.toml that names federations; this one names none.
    assert (place.app / "pyproject.toml").read_bytes() == (EXAMPLES / place.example / "pyproject.toml").read_bytes()


def test_a_superlink_and_three_supernodes_on_loopback(place):
    link = f"127.0.0.1:{place.port}"
    connected(place, f'address = "{link}"\ninsecure = true')
    place.start("flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(place.port))
    answers(place.port)
    for number in range(3):
        supernode(place, number, "--insecure")
    place.flwr("run", ".", "here", "--stream", "--run-config", "clients=3 riders='2'")
    assert completed(place)
    earned = paid(place, ["client 0", "client 1", "client 2"])
    assert earned["client 2"] == 0 < min(earned["client 0"], earned["client 1"])
    heard = [*place.folder.glob("flower-supernode-*.log")]  # where each client's own output goes
    for number, amount in enumerate(earned.values()):
        told = f"federation, round 1: client {number} is paid {amount // 100}.{amount % 100:02} EUR: "
        assert sum(told in path.read_text() for path in heard) == 1


def test_four_supernodes_examine_one_another_and_are_paid_once(place):
    link = f"127.0.0.1:{place.port}"
    connected(place, f'address = "{link}"\ninsecure = true')
    place.start("flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(place.port))
    answers(place.port)
    for number in range(4):
        supernode(place, number, "--insecure")
    place.flwr("run", ".", "here", "--stream", "--run-config", "clients=4 riders='3' protocol='exam'")
    assert completed(place)
    earned = paid(place, [f"client {i}" for i in range(4)], "federation-exam")
    assert earned.pop("client 3") == 0 < min(earned.values()) and sum(earned.values()) <= 10_000
    rounds = Rounds(Ledger.open(str(place.app / "paid" / "rounds.db")))
    assert len(rounds.sat("federation-exam")) == 3
    assert all(len(sat.judgements) == 4 for sat in rounds.sat("federation-exam"))


def test_authenticated_supernodes_are_named_by_their_keys_and_a_stranger_is_not_let_in(place):
    authority, certificate, key = certificates(place.folder)
    connected(place, f'address = "127.0.0.1:{place.port}"\nroot-certificates = "{authority}"')
    tls = ("--ssl-ca-certfile", str(authority), "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    place.start(
        "flower-superlink", *tls, "--enable-supernode-auth", "--host", "127.0.0.1", "--port", str(place.port)
    )  # fmt: skip
    answers(place.port)
    keys = [node_keys(place.folder, number) for number in range(4)]
    for number, (private, public, _) in enumerate(keys):
        if number < 3:  # the fourth is a stranger
            place.flwr("supernode", "register", str(public), "here")
        own = ("--root-certificates", str(authority), "--auth-supernode-private-key", str(private))
        supernode(place, number, *own, *tls)
    place.flwr("run", ".", "here", "--stream", "--run-config", "clients=3 riders='2' names='keys'")
    assert completed(place)
    *names, stranger = (name for _, _, name in keys)
    earned = paid(place, names)
    with pytest.raises(InputError, match="has no submission"):
        paid(place, [stranger])
    assert earned[names[2]] == 0 < min(earned[names[0]], earned[names[1]])


@pytest.mark.parametrize("place", ["flower-mnist"], indirect=True)
def test_the_mnist_example_pays_neither_the_echo_nor_the_noise(place):
    pytest.importorskip("torch", reason="torch is not installed: pip install 'verax[lab]'")
    pytest.importorskip("ray", reason="ray is not installed: pip install 'verax[simulation]'")
    large_digits(place.app / "data" / "mnist")
    own = "num-server-rounds=2 fetch=false"
    place.flwr("run", ".", "local", "--stream", "--federation-config", TEN, "--run-config", own)
    assert completed(place)
    for name in ("mnist-1", "mnist-2"):
        earned = paid(place, [f"client {i}" for i in range(10)], name)
        assert earned["client 7"] == earned["client 8"] == 0
        assert sum(earned.values()) > 0
        assert (place.app / "paid" / f"round-{name[-1]}.html").exists()
    assert "total" in (place.app / "paid" / "paid.txt").read_text()


@pytest.mark.parametrize("place", ["flower-pytorch"], indirect=True)
def test_the_pytorch_app_with_the_diff_of_its_readme_pays_ten_clients(place):
    pytest.importorskip("torch", reason="torch is not installed: pip install 'verax[torch]'")
    pytest.importorskip("ray", reason="ray is not installed: pip install 'verax[simulation]'")
    diff = EXAMPLES / place.example / "paid.diff"
    subprocess.run(["patch", "-p1", "-i", str(diff)], cwd=place.app, check=True)
    place.flwr("run", ".", "local", "--stream", "--federation-config", TEN)
    assert completed(place)
    earned = paid_to_all(place.app / "rounds.db")
    assert len(earned) == 10 and min(earned) > 0
    assert (place.app / "final_model.pt").exists() and (place.app / "paid" / "round-1.html").exists()


@pytest.mark.parametrize("place", ["flower-lora"], indirect=True)
def test_ten_clients_are_paid_for_adapters_of_a_language_model_and_a_rider_is_not(place):
    pytest.importorskip("torch", reason="torch is not installed: pip install 'verax[lab]'")
    pytest.importorskip("ray", reason="ray is not installed: pip install 'verax[simulation]'")
    place.flwr("run", ".", "local", "--stream", "--federation-config", TEN)
    assert completed(place)
    rider, *worked = paid_to_all(place.app / "paid" / "rounds.db")
    assert rider == 0 and len(worked) == 9 and min(worked) > 200


def paid_to_all(ledger: Path, name: str = "federation-1") -> list[int]:
    """What the clients of a round earned, from the least, where only Flower knows their names."""
    rounds = Rounds(Ledger.open(str(ledger)))
    assert rounds.verify(name) == []
    return sorted(rounds.payment(name, taken["agent"])[1] for taken in rounds.show(name)["submissions"])


def large_digits(folder: Path) -> None:
    """The four files of MNIST, with scikit-learn's digits three times as large and somewhere in the frame."""
    from sklearn.datasets import load_digits

    rng = np.random.default_rng(0)
    images, labels = load_digits(return_X_y=True)
    large = (images.reshape(-1, 8, 8) * 15).astype(np.uint8).repeat(3, 1).repeat(3, 2)
    folder.mkdir(parents=True)
    for part, chosen in (("train", rng.integers(0, 1300, 60_000)), ("t10k", rng.integers(1300, 1797, 10_000))):
        frames = np.zeros((len(chosen), 28, 28), np.uint8)
        for frame, image, (down, right) in zip(
            frames, large[chosen], rng.integers(0, 5, (len(chosen), 2)), strict=True
        ):
            frame[down : down + 24, right : right + 24] = image
        for kind, values in (("images-idx3", frames), ("labels-idx1", labels[chosen].astype(np.uint8))):
            head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + values.tobytes(), 1))


def connected(there: Place, lines: str) -> None:
    """Flower's own configuration, with one SuperLink called `here`."""
    (there.folder / "home").mkdir()
    (there.folder / "home" / "config.toml").write_text(f'[superlink]\ndefault = "here"\n\n[superlink.here]\n{lines}\n')


def answers(port: int) -> None:
    """Wait until somebody listens on a port."""
    limit = time.monotonic() + 120
    while time.monotonic() < limit:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    pytest.fail(f"nobody listens on port {port}")


def supernode(there: Place, number: int, *words) -> None:
    """A client's side, with its partition of three."""
    there.start(
        "flower-supernode", *words, "--superlink", f"127.0.0.1:{there.port}",
        "--host", "127.0.0.1", "--port", str(free_port()),
        "--node-config", f"partition-id={number} num-partitions=3",
    )  # fmt: skip


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """A certificate authority for one hour, and a certificate and key of 127.0.0.1 that it signed."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)]) for text in ("authority", "127.0.0.1")]
    made = []
    for i, key in enumerate(keys):
        builder = (
            x509.CertificateBuilder(names[0], names[i], key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=i == 0, path_length=None), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(keys[0].public_key()), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        if i:
            here = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
            builder = builder.add_extension(x509.SubjectAlternativeName(here), critical=False)
        else:
            uses = dict.fromkeys(
                ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
                 "encipher_only", "decipher_only"), False
            )  # fmt: skip
            builder = builder.add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **uses), critical=True)
        made.append(builder.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    private = keys[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    paths = folder / "ca.crt", folder / "server.pem", folder / "server.key"
    for path, content in zip(paths, (*made, private), strict=True):
        path.write_bytes(content)
    return paths


def node_keys(folder: Path, number: int) -> tuple[Path, Path, str]:
    """A SuperNode's private and public key as OpenSSH writes them, and the name that the strategy gives it."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private, public = folder / f"node-{number}", folder / f"node-{number}.pub"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    )
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    public.write_bytes(key.public_key().public_bytes(*openssh))
    pem = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private, public, hashlib.sha256(pem).hexdigest()[:20]
