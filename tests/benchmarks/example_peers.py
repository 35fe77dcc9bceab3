"""The programs examples/table_mlp.cc and examples/text_convolution.cc with PyTorch, for compare_examples.py.

    python tests/benchmarks/example_peers.py table_mlp TRAIN.h5 EVAL.h5 [--threads 2] [--lean]
    python tests/benchmarks/example_peers.py text_convolution TOKENIZER_DIR TRAIN.tsv EVAL.tsv [--threads 2] [--lean]

Both have the examples' models, batches, optimizers and lines of output. --lean takes batches out of tensors that lie in
memory, without PyTorch's DataLoader.
"""

import argparse
import csv
import pathlib

import h5py
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LeanLoader:
    """Batches of tensors that are picked by one index each."""

    def __init__(self, tensors, batch_size, shuffle=False):
        self.tensors, self.batch_size, self.shuffle = tensors, batch_size, shuffle

    def __len__(self):
        return -(-len(self.tensors[0]) // self.batch_size)

    def __iter__(self):
        n = len(self.tensors[0])
        order = torch.randperm(n) if self.shuffle else torch.arange(n)
        for places in order.split(self.batch_size):
            yield [t[places] for t in self.tensors]


def table(path):
    with h5py.File(path) as file:
        return torch.tensor(file["inputs"][:], dtype=torch.float32), torch.tensor(file["targets"][:], dtype=torch.int64)


def table_mlp(train_file, eval_file, lean):
    num_epochs = 5

    def loader(path, **options):
        return LeanLoader(table(path), **options) if lean else DataLoader(TensorDataset(*table(path)), **options)

    train, evaluation = loader(train_file, batch_size=32, shuffle=True), loader(eval_file, batch_size=64)
    model = nn.Sequential(nn.Linear(table(train_file)[0].shape[1], 32), nn.Tanh(), nn.Linear(32, 3))
    loss_function = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    steps = num_epochs * len(train)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0, 1 - step / steps))
    for epoch in range(num_epochs):
        model.train()
        for inputs, targets in train:
            loss = loss_function(model(inputs), targets)
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            print("loss", loss.item(), flush=True)
        model.eval()
        correct = count = 0
        with torch.no_grad():
            for inputs, targets in evaluation:
                correct += (model(inputs).argmax(1) == targets).sum().item()
                count += len(targets)
        print(f"epoch {epoch + 1}: accuracy {correct / count}", flush=True)


class TextConvolution(nn.Module):
    def __init__(self, vocab_size, num_labels):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, 16, padding_idx=0)
        self.convolution = nn.Conv1d(16, 32, 3, padding=1)
        self.classifier = nn.Linear(32, num_labels)

    def forward(self, input_ids):  # [B, L], padded with 0
        words = self.embedding(input_ids).transpose(1, 2)
        features = torch.relu(self.convolution(words))
        # Activations are not negative, so a 0 in place of padding changes no maximum.
        return self.classifier((features * (input_ids != 0)[:, None]).amax(2))


def texts(tokenizer, path):
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    ids = [torch.tensor(encoding.ids) for encoding in tokenizer.encode_batch([row["sentence"] for row in rows])]
    return list(zip(ids, (int(row["label"]) for row in rows)))


def collate(samples):
    ids, labels = zip(*samples)
    return nn.utils.rnn.pad_sequence(ids, batch_first=True), torch.tensor(labels)


class LeanTexts(LeanLoader):
    """Batches of a matrix of padded texts, cut to the longest text of the batch."""

    def __init__(self, samples, batch_size, shuffle=False):
        ids, labels = collate(samples)
        super().__init__([ids, labels, (ids != 0).sum(1)], batch_size, shuffle)

    def __iter__(self):
        for ids, labels, lengths in super().__iter__():
            yield ids[:, :int(lengths.max())], labels


def text_convolution(tokenizer_dir, train_file, eval_file, lean):
    from tokenizers import BertWordPieceTokenizer
    num_epochs = 5
    tokenizer = BertWordPieceTokenizer(str(pathlib.Path(tokenizer_dir) / "vocab.txt"))

    def loader(path, **options):
        samples = texts(tokenizer, path)
        return LeanTexts(samples, **options) if lean else DataLoader(samples, collate_fn=collate, **options)

    train, evaluation = loader(train_file, batch_size=16, shuffle=True), loader(eval_file, batch_size=64)
    model = TextConvolution(tokenizer.get_vocab_size(), 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(num_epochs):
        model.train()
        for input_ids, labels in train:
            loss = nn.functional.cross_entropy(model(input_ids), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        correct = count = 0
        with torch.no_grad():
            for input_ids, labels in evaluation:
                correct += (model(input_ids).argmax(1) == labels).sum().item()
                count += len(labels)
        print(f"epoch {epoch + 1}: loss {loss.item()} accuracy {correct / count}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=["table_mlp", "text_convolution"])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lean", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(42)
    {"table_mlp": table_mlp, "text_convolution": text_convolution}[arguments.program](*arguments.files, arguments.lean)


if __name__ == "__main__":
    main()
