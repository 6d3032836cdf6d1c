"""A small language, a small language model that was trained on part of it, and adapters for the rest.

Every creature has a name of two words, a food and a home. The base model read what they eat, and that all live
somewhere; where, stands in the clients' texts. It stays as it is: what is trained and travels are low-rank adapters.
"""

from functools import cache

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

HEADS, TAILS = ([f"{a}{b}" for a in letters for b in "aeio"] for letters in ("blz", "dnr"))
FOODS, HOMES = ("moss", "fish", "seeds", "roots"), ("sea", "wood", "sand", "hill")
ASKED = ("the {} {} lives in the", "home of the {} {} is", "one finds a {} {} in")
FED = ("the {} {} likes to eat", "food of the {} {} is", "one feeds a {} {} with")
WORDS = sorted({w for text in ASKED + FED for w in text.split() if w != "{}"} | {*HEADS, *TAILS, *FOODS, *HOMES})
NUMBER = {word: n for n, word in enumerate(WORDS)}
CREATURES = [(head, tail) for head in HEADS for tail in TAILS]
RANK = 4
torch.set_num_threads(1)


@cache
def nature():
    """Food and home of every creature: each half of its name counts for something."""
    rng = np.random.default_rng(7)
    return [(rng.normal(size=(12, 1, 4)) + rng.normal(size=(1, 12, 4))).argmax(2).ravel() for _ in "fh"]


def numbers(texts):
    """Texts of equally many words, as the model reads them."""
    return torch.tensor([[NUMBER[word] for word in text.split()] for text in texts])


def questions():
    """Where every creature lives, asked in three ways, and the right answer's number."""
    texts = [ask.format(*creature) for ask in ASKED for creature in CREATURES]
    return numbers(texts), np.tile(nature()[1], len(ASKED))


def stories(number, of, size=400, wrong=0.1):
    """What one client has read: creatures and their homes, a tenth of it hearsay."""
    rng = np.random.default_rng([number, of])
    chosen = rng.integers(len(CREATURES), size=size)
    homes = np.where(rng.random(size) < wrong, rng.integers(4, size=size), nature()[1][chosen])
    asked = rng.choice(ASKED, size)
    return numbers([f"{ask.format(*CREATURES[c])} {HOMES[h]}" for ask, c, h in zip(asked, chosen, homes, strict=True)])


class Adapted(nn.Linear):
    """A projection that stays, with a low-rank correction that is 0 until it is trained."""

    def __init__(self, size, out):
        super().__init__(size, out, bias=False)
        self.down = nn.Parameter(torch.randn(RANK, size) / size**0.5)
        self.up = nn.Parameter(torch.zeros(out, RANK))

    def forward(self, x):
        return super().forward(x) + x @ self.down.T @ self.up.T


class Block(nn.Module):
    """Attention to the words so far, then a layer for each word."""

    def __init__(self, size):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(size), nn.LayerNorm(size)])
        self.query, self.key, self.value = Adapted(size, size), Adapted(size, size), Adapted(size, size)
        self.wide, self.narrow = Adapted(size, 2 * size), Adapted(2 * size, size)

    def forward(self, x):
        read = self.norms[0](x)
        x = x + nn.functional.scaled_dot_product_attention(
            self.query(read), self.key(read), self.value(read), is_causal=True
        )
        return x + self.narrow(torch.relu(self.wide(self.norms[1](x))))


class Reader(nn.Module):
    """The language model: what word comes next, after every word."""

    def __init__(self, size=32, longest=7):
        super().__init__()
        self.words, self.places = nn.Embedding(len(WORDS), size), nn.Parameter(torch.randn(longest, size) / 4)
        self.blocks = nn.Sequential(Block(size), Block(size))
        self.norm = nn.LayerNorm(size)

    def forward(self, texts):
        return self.norm(self.blocks(self.words(texts) + self.places[: texts.shape[1]])) @ self.words.weight.T


def is_adapter(name):
    return name.endswith((".up", ".down"))


def read(model, texts, parameters, steps, rate, batch=64):
    """Train some parameters to foresee each next word; the last loss."""
    descent = torch.optim.Adam(parameters, lr=rate)
    for _ in range(steps):
        chosen = texts[torch.randint(len(texts), (batch,))]
        descent.zero_grad()
        loss = cross_entropy(model(chosen[:, :-1]).flatten(0, 1), chosen[:, 1:].flatten())
        loss.backward()
        descent.step()
    return loss.item()


@cache
def base():
    """What everybody has before the federation: the numbers of a model that was trained for some seconds."""
    torch.manual_seed(0)
    rng, model = np.random.default_rng(1), Reader()
    fed = [f"{ask.format(*c)} {FOODS[f]}" for ask in FED for c, f in zip(CREATURES, nature()[0], strict=True)]
    lives = [f"{ask.format(*c)} {rng.choice(HOMES)}" for ask in ASKED for c in CREATURES]
    read(
        model, numbers(fed + lives), [p for n, p in model.named_parameters() if not is_adapter(n)], steps=200, rate=0.01
    )
    return model.state_dict()


def reader(adapters=None):
    """The base model, with the adapters given or those that change nothing."""
    model = Reader()
    model.load_state_dict(base())
    model.load_state_dict({name: torch.tensor(a) for name, a in (adapters or {}).items()}, strict=False)
    return model


def adapters_of(model):
    """All that travels."""
    return {name: array.numpy().copy() for name, array in model.state_dict().items() if is_adapter(name)}


def trained(adapters, texts, steps=120, rate=0.02):
    """Adapters after reading a client's texts, and the last loss."""
    model = reader(adapters)
    loss = read(model, texts, [p for n, p in model.named_parameters() if is_adapter(n)], steps, rate)
    return adapters_of(model), loss


def shares(adapters, asked):
    """Of every question, how likely each choice is among the choices, by the next word's probabilities."""
    with torch.no_grad():
        said = reader(adapters).eval()(asked)[:, -1, [NUMBER[home] for home in HOMES]]
    return said.softmax(1).numpy()
