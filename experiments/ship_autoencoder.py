"""Train the autoencoder of digits and write its card; `geonet-mnist` depends on it.

python -m experiments.ship_autoencoder          # the card of the stored weights
python -m experiments.ship_autoencoder --train  # weights and card; needs MNIST (GEONET_DATA)
"""

from __future__ import annotations

import sys

from experiments.autoencoder import BATCH, PENALTY, SHIPPED, load_autoencoder, train_autoencoder
from experiments.mnist import mnist
from geonet._files import atomic_write
from geonet.solvers.neural.model import read_tensors


def card() -> str:
    """Return the model card in Markdown."""
    _, header = read_tensors(SHIPPED, "an autoencoder")
    weights = sum(p.numel() for p in load_autoencoder().parameters())
    return f"""# mnist-autoencoder

{weights:,} weights: 784 → 128 → 32 → 128 → 784, codes bounded by 9. Trained by
`python -m experiments.ship_autoencoder --train` on MNIST's 60,000 training digits (Y. LeCun and
C. Cortes, CC BY-SA 3.0), seed {header["seed"]}: {header["epochs"]} epochs with batches of {BATCH},
the squared error plus {PENALTY:g} times the mean square of the codes,
{header["seconds"]:.0f} s on one thread beside other trainings.

On the 10,000 test digits, pixels in [0, 1]: mean squared error
{header["unseen_squared_error"]:.4f}, standard deviation of the codes {header["code_spread"]:.2f},
largest code {header["largest_code"]:.2f}.
"""


def main(arguments: list[str]) -> None:
    """Train if --train is given, and write the card."""
    if "--train" in arguments:
        train_autoencoder(mnist("train").images, mnist("test").images, SHIPPED)
    with atomic_write(SHIPPED.with_suffix(".md")) as temporary:
        temporary.write_text(card(), encoding="utf-8")
    print(card())


if __name__ == "__main__":
    main(sys.argv[1:])
