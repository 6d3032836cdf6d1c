"""The laboratory: data sets as files, networks as agents, their training and the attack on them."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import json
import tarfile
import threading
import warnings
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from verax.cli import app
from verax.errors import InputError
from verax.reproduce import datasets, experiments

torch_there = importlib.util.find_spec("torch") is not None
training = pytest.mark.skipif(not torch_there, reason="torch is not installed")
if torch_there:
    import torch

    from verax.reproduce import agents
    from verax.reproduce.agents import Recipe, pgd


def idx(array):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return gzip.compress(b"\0\0\x08" + bytes([array.ndim]) + sizes + array.astype(np.uint8).tobytes(), mtime=0)


def mnist_files(train=40, test=20):
    """Four small IDX files; an image's label is written into its brightness."""
    files = {}
    for part, size in (("train", train), ("t10k", test)):
        labels = np.arange(size) % 10
        noise = np.random.default_rng(size).integers(0, 30, (size, 28, 28))
        files[f"{part}-images-idx3-ubyte.gz"] = idx(labels[:, None, None] * 22 + noise)
        files[f"{part}-labels-idx1-ubyte.gz"] = idx(labels)
    return {name: files[name] for name in datasets._MNIST}


def cifar_files(each=3):
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    return {name: np.arange(each * 3073, dtype=np.int64).astype(np.uint8).tobytes() for name in names}


def laid_out(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def test_idx_files_become_arrays_in_their_order(tmp_path):
    laid_out(tmp_path / "mnist", mnist_files())
    found = datasets.load("mnist", tmp_path, fetch=False)
    assert found.train_images.shape == (40, 1, 28, 28) and found.test_images.shape == (20, 1, 28, 28)
    assert found.train_images.dtype == np.uint8 and found.test_labels.tolist() == [*range(10)] * 2
    assert datasets.test_labels("mnist", tmp_path).tolist() == found.test_labels.tolist()


def test_cifar_records_become_arrays_channel_first(tmp_path):
    files = cifar_files()
    laid_out(tmp_path / "cifar-10-batches-bin", files)
    found = datasets.load("cifar10", tmp_path, fetch=False)
    assert found.train_images.shape == (15, 3, 32, 32) and found.test_images.shape == (3, 3, 32, 32)
    record = np.frombuffer(files["test_batch.bin"], np.uint8)[3073 : 2 * 3073]
    assert found.test_labels[1] == record[0] == datasets.test_labels("cifar10", tmp_path)[1]
    # the green plane begins after the label and 1024 red bytes; its second row 32 further
    assert found.test_images[1, 1, 1, 0] == record[1 + 1024 + 32]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"plain", "not a gzip file"),
        (idx(np.arange(10))[:-9], "not a gzip file"),
        (gzip.compress(b"", mtime=0), "not an IDX file of bytes, or cut short"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x05abc", mtime=0), "not an IDX file of bytes, or cut short"),
        (gzip.compress(b"\0\0\x0d\x01\0\0\0\x03abc", mtime=0), "not an IDX file of bytes, or cut short"),
        (gzip.compress(b"\0\0\x08\x03\0\0", mtime=0), "not an IDX file of bytes, or cut short"),
    ],
)
def test_a_wrong_idx_file_gets_a_sentence(data, sentence, tmp_path):
    laid_out(tmp_path / "mnist", {"t10k-labels-idx1-ubyte.gz": data})
    with pytest.raises(InputError, match=sentence) as refusal:
        datasets.test_labels("mnist", tmp_path)
    assert "fetch it again" in str(refusal.value)


def test_a_damaged_gzip_body_gets_a_sentence(tmp_path):
    whole = bytearray(idx(np.arange(200)))
    whole[12:40] = b"\xff" * 28
    laid_out(tmp_path / "mnist", {"t10k-labels-idx1-ubyte.gz": bytes(whole)})
    with pytest.raises(InputError, match="not a gzip file"):
        datasets.test_labels("mnist", tmp_path)


@pytest.mark.parametrize("data", [b"", b"x" * 3072])
def test_a_wrong_cifar_file_gets_a_sentence(data, tmp_path):
    laid_out(tmp_path / "cifar-10-batches-bin", {"test_batch.bin": data})
    with pytest.raises(InputError, match=f"{len(data)} bytes are not whole records of 3073; fetch it again"):
        datasets.test_labels("cifar10", tmp_path)


def test_what_is_not_there_is_said_and_not_fetched(tmp_path):
    for name in datasets.NAMES:
        with pytest.raises(InputError, match="not there; give data_dir="):
            datasets.test_labels(name, tmp_path)
        with pytest.raises(InputError, match=r"is not there; put its . files there, or allow the download"):
            datasets.load(name, tmp_path, fetch=False)
    with pytest.raises(InputError, match="no data set is called 'svhn'; choose mnist or cifar10"):
        datasets.load("svhn", tmp_path)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def served(tmp_path):
    """A folder and the address at which it is served on this machine."""
    folder = tmp_path / "served"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def md5(data):
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def test_mnist_is_fetched_checked_and_kept(served, tmp_path, monkeypatch):
    folder, address = served
    files = mnist_files()
    laid_out(folder, files)
    monkeypatch.setattr(datasets, "_MNIST_BASE", address)
    monkeypatch.setattr(datasets, "_MNIST", {name: md5(data) for name, data in files.items()})
    told = []
    found = datasets.load("mnist", tmp_path / "data", progress=lambda done, size: told.append((done, size)))
    assert len(found.train_labels) == 40
    assert {(done, size) for done, size in told} == {(len(data), len(data)) for data in files.values()}
    monkeypatch.setattr(datasets, "_fetch_checked", None)  # whatever is there is not fetched again
    assert len(datasets.load("mnist", tmp_path / "data").test_labels) == 20


def test_cifar_is_fetched_and_unpacked_by_file_name_alone(served, tmp_path, monkeypatch):
    folder, address = served
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in {**cifar_files(), "readme.html": b"no"}.items():
            member = tarfile.TarInfo(f"../../cifar-10-batches-bin/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    (folder / "c.tar.gz").write_bytes(packed.getvalue())
    monkeypatch.setattr(datasets, "_CIFAR10", (address + "c.tar.gz", md5(packed.getvalue())))
    assert len(datasets.load("cifar10", tmp_path / "data").train_labels) == 15
    kept = sorted(p.relative_to(tmp_path / "data").as_posix() for p in (tmp_path / "data").rglob("*.*"))
    assert kept == sorted(f"cifar-10-batches-bin/{name}" for name in cifar_files())


def test_a_file_with_another_checksum_is_refused_and_not_kept(served, tmp_path, monkeypatch):
    folder, address = served
    (folder / "c.tar.gz").write_bytes(b"something else")
    monkeypatch.setattr(datasets, "_CIFAR10", (address + "c.tar.gz", md5(b"the file")))
    with pytest.raises(InputError, match="what came is not the file that was asked for"):
        datasets.load("cifar10", tmp_path / "data")
    assert not list((tmp_path / "data").rglob("*.*"))


def test_what_cannot_be_fetched_is_said_in_one_sentence(served, tmp_path, monkeypatch):
    _, address = served
    monkeypatch.setattr(datasets, "_CIFAR10", (address + "absent.tar.gz", ""))
    with pytest.raises(InputError, match=r"cannot be fetched \(.*\); fetch it elsewhere and give its folder"):
        datasets.load("cifar10", tmp_path)
    monkeypatch.setattr(datasets, "_MNIST_BASE", "http://127.0.0.1:1/")  # nothing listens on port 1
    with pytest.raises(InputError, match=r"Connection refused.*data_dir="):
        datasets.load("mnist", tmp_path)


def layers(net, *kinds):
    return [m for m in net.modules() if isinstance(m, kinds)]


@training
def test_lenet_has_two_convolutions_and_three_full_layers():
    net = agents.lenet()
    assert len(layers(net, torch.nn.Conv2d)) == 2 and len(layers(net, torch.nn.Linear)) == 3
    assert sum(p.numel() for p in net.parameters()) == 44_426  # LeNet-5 without padding, ten classes
    assert net(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert agents.lenet(3, 10, 32)(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


@training
def test_resnet34_has_its_layers_and_size():
    net = agents.resnet34()
    # 33 convolutions and the last layer give the name; three more shorten the way around where the size changes
    assert len(layers(net, torch.nn.Conv2d)) == 33 + 3 and len(layers(net, torch.nn.Linear)) == 1
    assert sum(p.numel() for p in net.parameters()) == 21_282_122  # the known size of this form for CIFAR-10
    assert agents.resnet34(3, 10, 8).eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@training
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32)])
def test_cnn13_has_six_convolutions_and_three_full_layers(channels, size):
    net = agents.cnn13(channels, 10, size, width=8)
    assert len(layers(net, torch.nn.Conv2d)) == 6 and len(layers(net, torch.nn.Linear)) == 3
    assert [m.out_channels for m in layers(agents.cnn13(), torch.nn.Conv2d)] == [32, 64, 128, 128, 256, 256]
    assert net.eval()(torch.zeros(2, channels, size, size)).shape == (2, 10)


@training
def test_the_papers_agents_are_the_four_of_its_appendix():
    told = [(r.name, r.images, r.epochs, r.every, r.rate) for r in agents.paper_recipes(1)]
    assert told == [
        ("mnist-lenet-2", 25_000, 100, 20, 0.1), ("mnist-cnn13-3", 25_000, 100, 20, 0.1),
        ("cifar10-resnet34-2", 25_000, 180, 40, 0.1), ("cifar10-cnn13-3", 25_000, 180, 40, 0.1),
    ]  # fmt: skip


@pytest.fixture
def digits(tmp_path):
    laid_out(tmp_path / "mnist", mnist_files(300, 100))
    return datasets.load("mnist", tmp_path, fetch=False)


@pytest.fixture
def recipe():
    """A small one with dropout and batch normalisation, whose states a resumed training must keep too."""
    return Recipe("mnist", "cnn13", 3, images=120, epochs=4, every=2, rate=0.02, batch=40, width=16)


@training
def test_training_the_same_recipe_twice_gives_the_same_network(digits, recipe):
    first, second, other = (
        agents.predict(agents.train(r, digits), digits.test_images) for r in (recipe, recipe, replace(recipe, seed=4))
    )
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


class _StoppedError(Exception):
    pass


@training
def test_a_stopped_training_resumes_to_the_same_network(digits, recipe, tmp_path):
    def stop(epoch, epochs, loss):
        if epoch == 3:
            raise _StoppedError

    whole = agents.predict(agents.train(recipe, digits), digits.test_images)
    with pytest.raises(_StoppedError):
        agents.train(recipe, digits, folder=tmp_path / "kept", progress=stop)
    told = []
    resumed = agents.train(recipe, digits, folder=tmp_path / "kept", progress=lambda *epoch: told.append(epoch[0]))
    assert told == [3, 4]  # what was kept is the state after the first learning rate's two epochs
    assert np.array_equal(agents.predict(resumed, digits.test_images), whole)
    finished = agents.train(recipe, digits, folder=tmp_path / "kept", progress=stop)
    assert np.array_equal(agents.predict(finished, digits.test_images), whole)


def statistics(net):
    return [t for m in layers(net, torch.nn.BatchNorm2d) for t in (m.running_mean, m.running_var)]


def alike(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


@training
def test_a_frozen_recipe_keeps_the_batch_statistics_of_its_first_epoch(digits, recipe):
    first, whole, usual = (
        agents.train(r, digits) for r in (replace(recipe, epochs=1), replace(recipe, frozen=True), recipe)
    )
    assert alike(statistics(whole), statistics(first)) and not alike(statistics(usual), statistics(first))
    assert not alike(whole.parameters(), first.parameters())  # the weights went on learning


@training
def test_a_rebuilt_recipe_trains_with_a_new_optimiser_every_epoch(digits, recipe):
    net = agents.build(recipe).to(memory_format=torch.channels_last)  # in this layout sums round as in `train`
    images, labels = agents._own_data(recipe, digits, torch.device("cpu"))
    shuffle = torch.Generator().manual_seed(recipe.seed)
    for rate in (0.02, 0.02, 0.002, 0.002):
        optimiser = torch.optim.SGD(net.parameters(), rate, momentum=0.9, weight_decay=1e-4)
        for batch in torch.randperm(120, generator=shuffle).split(40):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimiser.step()
    made, usual = (agents.train(r, digits) for r in (replace(recipe, rebuilt=True), recipe))
    assert alike(made.parameters(), net.parameters()) and not alike(usual.parameters(), net.parameters())


@training
@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_stopped_frozen_training_resumes_to_the_same_network(rebuilt, digits, recipe, tmp_path):
    def stop(epoch, epochs, loss):
        if epoch == 2:
            raise _StoppedError

    frozen = replace(recipe, frozen=True, rebuilt=rebuilt)
    whole = agents.train(frozen, digits)
    with pytest.raises(_StoppedError):
        agents.train(frozen, digits, folder=tmp_path / "kept", progress=stop)
    told = []
    resumed = agents.train(frozen, digits, folder=tmp_path / "kept", progress=lambda *epoch: told.append(epoch[0]))
    assert told == [2, 3, 4]  # the first epoch, in which the statistics moved, is not trained again
    assert alike(resumed.state_dict().values(), whole.state_dict().values())


@training
def test_a_diverged_variant_is_written_down_as_chance(digits, recipe, tmp_path):
    spec = importlib.util.spec_from_file_location("paper_train", Path(__file__).parents[1] / "paper" / "train.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    known, log = {"runs": []}, tmp_path / "published.json"
    for rate in (0.02, 1e12, 1e12):
        (out := tmp_path / f"rate-{rate}").mkdir(exist_ok=True)
        script.accuracy_alone(replace(recipe, rate=rate), tmp_path, out)
        script.written_down({"variant": "frozen", **json.loads((out / "run.json").read_text())}, known, log)
    found = {run["recipe"]["rate"]: run for run in json.loads(log.read_text())["runs"]}
    assert len(found) == len(known["runs"]) == 2  # the third run is the second's again
    assert found[1e12]["accuracy"] == 0.1 and found[1e12]["diverged_in_epoch"] == 1
    assert "diverged_in_epoch" not in found[0.02] and "resumed_after_epoch" not in found[0.02]


@training
def test_the_training_of_another_recipe_is_not_resumed(digits, recipe, tmp_path):
    agents.train(replace(recipe, epochs=1, every=1), digits, folder=tmp_path)
    with pytest.raises(InputError, match="another recipe's training is kept there; move it away"):
        agents.train(recipe, digits, folder=tmp_path)


@training
def test_noise_changes_the_labels_it_is_told_to(digits, recipe):
    clean = agents._own_data(recipe, digits, torch.device("cpu"))[1]
    noisy = agents._own_data(replace(recipe, noise=1.0), digits, torch.device("cpu"))[1]
    assert 0.75 < float((clean != noisy).float().mean()) <= 1  # nine of ten, in expectation


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A narrow network that has learned to read brightness, with the images it is tested on."""
    if not torch_there:
        pytest.skip("torch is not installed")
    folder = tmp_path_factory.mktemp("digits")
    laid_out(folder / "mnist", mnist_files(300, 100))
    data = datasets.load("mnist", folder, fetch=False)
    net = agents.train(Recipe("mnist", "cnn13", 0, 300, 60, 30, 0.05, 30, 16), data)
    return net, data


@training
def test_training_learns_and_prediction_gives_rows_of_probabilities(learned):
    net, data = learned
    rows = agents.predict(net, data.test_images, batch=30)
    assert rows.shape == (100, 10) and rows.sum(1) == pytest.approx(1, abs=1e-5)
    assert (rows.argmax(1) == data.test_labels).mean() > 0.4  # chance is 0.1
    assert np.allclose(rows, agents.predict(net, data.test_images), atol=1e-5)


@training
def test_the_attack_stays_in_the_ball_and_in_0_to_1_and_lowers_accuracy(learned):
    net, data = learned
    images = torch.from_numpy(data.test_images.copy()).float() / 255
    labels = torch.from_numpy(data.test_labels)
    moved = pgd(net, images, labels, generator=torch.Generator().manual_seed(0))
    assert float((moved - images).abs().max()) <= 0.15 + 1e-6
    assert float(moved.min()) >= 0 and float(moved.max()) <= 1
    again = pgd(net, images, labels, generator=torch.Generator().manual_seed(0))
    assert torch.equal(moved, again)
    clean = agents.predict(net, data.test_images)
    attacked = agents.predict(net, data.test_images, attacked=data.test_labels)
    right, still_right = ((rows.argmax(1) == data.test_labels).mean() for rows in (clean, attacked))
    assert still_right < right - 0.3


@training
def test_the_attack_is_foolboxs_from_the_same_start(learned):
    if importlib.util.find_spec("foolbox") is None:
        pytest.skip("foolbox is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import foolbox

    net, data = learned
    images = torch.from_numpy(data.test_images[:40].copy()).float() / 255
    labels = torch.from_numpy(data.test_labels[:40])
    ours = pgd(net, images, labels, steps=10, start=images)
    attack = foolbox.attacks.LinfPGD(abs_stepsize=0.01, steps=10, random_start=False)
    model = foolbox.PyTorchModel(net, bounds=(0, 1), device="cpu")
    theirs = attack.run(model, images, foolbox.Misclassification(labels), epsilon=0.15)
    assert torch.allclose(ours, theirs, atol=1e-5)


@training
@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_reproduce_trains_attacks_scores_and_draws(tmp_path):
    laid_out(tmp_path / "mnist", mnist_files(300, 60))
    args = ["--figure", "1", "--train", "--tiny", "--runs", "2", "--data-dir", tmp_path, "--out", tmp_path / "out"]
    result = CliRunner().invoke(app, ["reproduce", *map(str, args)], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    assert "mnist-lenet-0: epoch 2/2, loss" in result.stdout and "mnist-cnn13-1: epoch 2/2" in result.stdout
    curves = json.loads((tmp_path / "out" / "curves.json").read_text())["curves"]
    assert len(curves) == 16 and np.isfinite([c["exact"] for c in curves]).all()
    assert (tmp_path / "out" / "figure-1.svg").exists()


@training
def test_training_says_what_it_fetches(served, tmp_path, monkeypatch):
    folder, address = served
    files = mnist_files(60, 30)
    laid_out(folder, files)
    monkeypatch.setattr(datasets, "_MNIST_BASE", address)
    monkeypatch.setattr(datasets, "_MNIST", {name: md5(data) for name, data in files.items()})
    told = []
    found, labels = experiments.trained(["mnist"], tmp_path / "d", tmp_path, tiny=True, progress=told.append)
    assert sorted(found) == [("mnist", "S"), ("mnist", "W")] and len(labels["mnist"]) == 30
    assert told[0].startswith("mnist: fetched 0.0 of 0.0 MB") and told[-1].startswith("mnist-cnn13-1: epoch 2/2")


@training
@pytest.mark.slow
def test_the_agents_of_cifar_are_trained_end_to_end(tmp_path):
    laid_out(tmp_path / "cifar-10-batches-bin", {
        name: np.random.default_rng(0).integers(0, 10, (100, 3073), np.uint8).tobytes() for name in cifar_files()
    })  # fmt: skip
    found, labels = experiments.trained(["cifar10"], tmp_path, tmp_path / "out", tiny=True)
    assert sorted(found) == [("cifar10", "S"), ("cifar10", "W")]
    assert found["cifar10", "W"].attacked.shape == (len(labels["cifar10"]), 10)
