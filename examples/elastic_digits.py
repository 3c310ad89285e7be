"""Trains a small network to read digits, with PyTorch, on however many workers there are:

    pliant run -n 4 --min 1 --max 8 --restart -- python3 elastic_digits.py
    python3 elastic_digits.py                        alone: the same program

While it trains: `pliant resize 2`, `pliant resize 6`, or kill -9 any of its processes.
"""

import argparse

import torch

import pliant.torch as pliant

# Each digit as three columns of five dots, from the top left.
GLYPHS = ["111101101101111", "010110010010111", "111001111100111", "111001111001111",
          "101101111001001", "111100111001111", "111100111101111", "111001001001001",
          "111101111101111", "111101111001111"]


class Digits(torch.utils.data.Dataset):
    """Pictures of 8 x 8 dots: a digit somewhere in it, and noise. Each is drawn when it is asked
    for, out of its number alone."""

    def __init__(self, count, first=0):
        self.count, self.first = count, first

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        random = torch.Generator().manual_seed(self.first + index)
        digit = int(torch.randint(10, (1,), generator=random))
        top, left = torch.randint(4, (2,), generator=random).tolist()
        picture = torch.rand(8, 8, generator=random) * 0.7
        glyph = torch.tensor([float(dot) for dot in GLYPHS[digit]]).view(5, 3)
        picture[top:top + 5, left:left + 3] += glyph
        return picture, digit


def main():
    parser = argparse.ArgumentParser(description="Trains a small network to read digits.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=4000)
    options = parser.parse_args()

    torch.set_num_threads(1)  # the workers share this machine
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(),
                                torch.nn.Linear(64, 10))
    optimizer = pliant.SynchronousSGD(torch.optim.Adam(model.parameters(), lr=3e-3), model)
    loader = pliant.ElasticLoader(Digits(options.samples), batch_size=64)
    session = pliant.current_session()

    for epoch in range(options.epochs):
        for pictures, digits in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(pictures), digits)
            loss.backward()
            optimizer.step()
        if loader.epoch == epoch + 1 and session.rank == 0:
            pictures, digits = map(torch.stack, zip(*(
                (picture, torch.tensor(digit)) for picture, digit in
                (Digits(500, first=10**6)[i] for i in range(500)))))
            right = (model(pictures).argmax(1) == digits).float().mean()
            print(f"epoch {epoch + 1}: {session.size} workers read {right:.0%} of new pictures "
                  "right", flush=True)


main()
