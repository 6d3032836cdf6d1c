"""The network, the data, and how both are used: nothing here knows of payment."""

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, relu
from torch.utils.data import DataLoader, TensorDataset

HELD_BACK = 500  # images that no client has: the server's


class Net(nn.Module):
    """Two convolutions and two dense layers, with BatchNorm after each convolution."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(16)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1 = nn.Linear(16 * 2 * 2, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = self.pool(relu(self.norm1(self.conv1(x))))
        x = self.pool(relu(self.norm2(self.conv2(x))))
        return self.fc2(relu(self.fc1(x.flatten(1))))


@cache
def digits():
    """scikit-learn's images, (1797, 1, 8, 8) in 0..1, and labels, in a fixed random order."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return torch.tensor(images[order] / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(labels[order])


def load_data(partition_id, num_partitions, batch_size):
    """One client's images: four fifths to train on, one fifth to validate on."""
    images, labels = (part[:-HELD_BACK][partition_id::num_partitions] for part in digits())
    cut = len(labels) * 4 // 5
    return (
        DataLoader(TensorDataset(images[:cut], labels[:cut]), batch_size=batch_size, shuffle=True),
        DataLoader(TensorDataset(images[cut:], labels[cut:]), batch_size=batch_size),
    )


def load_centralized_dataset():
    """The images that no client has."""
    images, labels = (part[-HELD_BACK:] for part in digits())
    return DataLoader(TensorDataset(images, labels), batch_size=128)


def train(net, trainloader, epochs, lr, device):
    """Some epochs down the slope; the mean loss."""
    optimizer = torch.optim.SGD(net.to(device).train().parameters(), lr=lr, momentum=0.9)
    total = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = cross_entropy(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(trainloader))


def test(net, testloader, device):
    """Mean loss and accuracy."""
    net.to(device).eval()
    loss = right = 0.0
    with torch.no_grad():
        for images, labels in testloader:
            said = net(images.to(device))
            loss += cross_entropy(said, labels.to(device), reduction="sum").item()
            right += (said.argmax(1) == labels.to(device)).sum().item()
    return loss / len(testloader.dataset), right / len(testloader.dataset)
