"""The epsilon of a student's federated averaging as printed, as meant, and as run: the table of docs/gaussian.md.

The code of https://github.com/ltzheng/data-privacy (experiments/federated_learning) clips each of a model's 8 tensors to norm
C and adds noise of standard deviation σ²C², which was meant as a variance. The epsilon that it prints has the base and the
argument of a logarithm swapped. Here each cell of its table, for one release at delta 1e-3, is what it prints, what the formula
claims that it quotes, and what is true of four readings of it:

    A  noise σ at sensitivity C, which the formula assumes
    B  noise σC at sensitivity C, which the text says
    C  noise σ²C² at sensitivity C, which the code adds
    D  noise σ²C² at sensitivity C√8, which is the program that ran

    python examples/headlines/epsilon_table.py            # prints the table
    python examples/headlines/epsilon_table.py --write    # puts it into the page
"""

import argparse
import math
import re
from collections.abc import Iterator
from decimal import ROUND_CEILING, Decimal
from pathlib import Path

from hubbub.mechanism import gaussian

PAGE = Path(__file__).parent.parent.parent / "docs" / "gaussian.md"
DELTA = 1e-3
CLIP_NORMS = tuple(round(0.1 * k, 1) for k in range(1, 10))
SIGMAS = (0.1, 0.2, 0.3, 0.4)
TENSORS = 8
# Of reading A, what other calibrations claim.
CLAIMS = {"zhao1": "A, zhao1", "zhao2": "A, zhao2", "extended": "A, extended"}


def as_printed(clip_norm: float, sigma: float) -> float:
    """Of the code, word for word."""
    return math.sqrt(2 * math.log(math.e, 1.25 / DELTA)) * clip_norm / sigma


def readings(clip_norm: float, sigma: float) -> dict[str, tuple[float, float]]:
    """Standard deviation of the noise and L2 sensitivity, by reading."""
    added = sigma**2 * clip_norm**2
    return {
        "A": (sigma, clip_norm),
        "B": (sigma * clip_norm, clip_norm),
        "C": (added, clip_norm),
        "D": (added, clip_norm * math.sqrt(TENSORS)),
    }


def cell(clip_norm: float, sigma: float) -> dict[str, float]:
    """Every epsilon of one clip norm and sigma, by its name."""
    noise, sensitivity = readings(clip_norm, sigma)["A"]
    row = {
        "as printed": as_printed(clip_norm, sigma),
        "as meant": gaussian.claimed_epsilon("classical", DELTA, noise, sensitivity).claimed_epsilon,
    }
    for name, (stddev, size) in readings(clip_norm, sigma).items():
        row[name] = gaussian.epsilon(DELTA, stddev, size)
    for name, column in CLAIMS.items():
        row[column] = gaussian.claimed_epsilon(name, DELTA, noise, sensitivity).claimed_epsilon
    return row


def rows() -> Iterator[tuple[float, float, dict[str, float]]]:
    """Clip norm, sigma, and their epsilons."""
    for clip_norm in CLIP_NORMS:
        for sigma in SIGMAS:
            yield clip_norm, sigma, cell(clip_norm, sigma)


def rounded_up(value: float) -> str:
    """Four digits, none of which states less."""
    exact = Decimal(value)
    up = exact.quantize(Decimal(1).scaleb(exact.adjusted() - 3), rounding=ROUND_CEILING)
    return f"{float(up):.4g}" if up < 10_000 else f"{float(up):.3e}".replace("e+0", "e")


def table() -> str:
    """All cells as Markdown; an exclamation mark where what the formula claims is false."""
    names = ("as printed", "as meant", "A", *CLAIMS.values(), "B", "C", "D")
    lines = [f"| C | σ | {' | '.join(names)} |", "|---|---|" + "---:|" * len(names)]
    for clip_norm, sigma, row in rows():
        shown = {
            "as printed": f"{row['as printed']:.4g}",
            "as meant": f"{row['as meant']:.4g}{'!' if row['as meant'] < row['A'] else ''}",
        }
        cells = [shown.get(name) or rounded_up(row[name]) for name in names]
        lines.append(f"| {clip_norm} | {sigma} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into docs/gaussian.md")
    if parser.parse_args().write:
        page = PAGE.read_text()
        new = re.sub(r"(<!-- table: epsilon -->\n).*?(<!-- end -->)", rf"\g<1>{table()}\n\g<2>", page, flags=re.DOTALL)
        PAGE.write_text(new)
    else:
        print(table())


if __name__ == "__main__":
    main()
