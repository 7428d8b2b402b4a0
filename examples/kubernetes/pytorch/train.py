"""Trains a small classifier on the IPUs of the partition that the operator assigned to this worker.

PopTorch reads the partition from the IPUOF_VIPU_API_* variables of the container. Checkpoints go to CHECKPOINTS, so that a
restarted attempt continues.
"""

import os
import pathlib

import poptorch
import torch

REPLICAS = int(os.environ.get("REPLICAS", "4"))
EPOCHS = int(os.environ.get("EPOCHS", "10"))
CHECKPOINT = pathlib.Path(os.environ.get("CHECKPOINTS", "/tmp")) / "model.pt"


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
        self.loss = torch.nn.CrossEntropyLoss()

    def forward(self, images, labels=None):
        scores = self.layers(images)
        return scores if labels is None else (scores, self.loss(scores, labels))


def main():
    images, labels = torch.randn(4096, 1, 28, 28), torch.randint(0, 10, (4096,))
    options = poptorch.Options().replicationFactor(REPLICAS)
    data = poptorch.DataLoader(options, torch.utils.data.TensorDataset(images, labels), batch_size=32, shuffle=True)
    model = Classifier()
    if CHECKPOINT.exists():
        model.load_state_dict(torch.load(CHECKPOINT))
    training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.01))
    for epoch in range(EPOCHS):
        losses = [training(*batch)[1].mean().item() for batch in data]
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}", flush=True)
        torch.save(model.state_dict(), CHECKPOINT)


if __name__ == "__main__":
    main()
