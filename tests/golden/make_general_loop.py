"""Writes distributed/testdata/general_loop.json: a loop of PyTorch over a TensorDataset, and its losses.

Run from the repository's root with torch installed:
    python tests/golden/make_general_loop.py > distributed/testdata/general_loop.json
"""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES, HIDDEN, CLASSES, BATCH, EPOCHS = 4, 6, 3, 5, 3


def main():
    cases = []
    for rows in [23, 21, 4]:  # the last batch has 3 rows, 1 row, and there is only one batch of 4
        torch.manual_seed(rows)
        inputs = torch.randn(rows, FEATURES)
        targets = torch.randint(CLASSES, (rows,))
        model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))
        case = {
            "inputs": inputs.flatten().tolist(),
            "targets": targets.tolist(),
            "parameters": [p.detach().flatten().tolist() for p in model.parameters()],
        }
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
        loss_function = nn.CrossEntropyLoss()
        losses = []
        for _ in range(EPOCHS):
            for x, y in DataLoader(TensorDataset(inputs, targets), batch_size=BATCH):
                optimizer.zero_grad()
                loss = loss_function(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        case["losses"] = losses
        cases.append(case)
    print(json.dumps({"torch": torch.__version__, "cases": cases}))


if __name__ == "__main__":
    main()
