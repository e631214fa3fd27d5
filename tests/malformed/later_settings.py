"""Settings of examples as units, of clip norms that move, of encryption, of plans, and of earlier runs, that cannot be."""

import itertools
from collections.abc import Iterator

from malformed.base import CONFIG, PLAN, Case, Run, Word
from malformed.contents import flipped, some
from malformed.damages import KINDS, Damage, becoming, holding, nothing, together
from malformed.settings import NO_REAL, NO_TEXT, NO_WHOLE, parsed, shown

EXAMPLES = ("privacy.unit=example",)
ADAPTIVE = ("privacy.clipping=adaptive",)
ENCRYPTED = ("secagg=paillier",)

WHOLE: dict[tuple[str, ...], tuple[str, ...]] = {
    EXAMPLES: ("training.rounds", "training.cohort_size", "training.workers", "training.seed"),
    (): ("training.local_steps", "training.schedule_rounds", "training.workers", "privacy.buffers"),
    ENCRYPTED: ("secagg.holders", "secagg.bits", "secagg.key_bits", "secagg.min_contributions", "secagg.threshold"),
}
REAL: dict[tuple[str, ...], tuple[str, ...]] = {
    EXAMPLES: ("privacy.noise_multiplier", "privacy.clip_norm", "training.learning_rate", "training.momentum"),
    (): ("training.proximal", "training.final_learning_rate", "training.cooldown", "training.cooldown_to"),
    ADAPTIVE: ("privacy.target_quantile", "privacy.clip_norm_learning_rate", "privacy.clip_count_stddev", "privacy.clip_norm"),
    ENCRYPTED: ("secagg.clip",),
}
TEXTS = (
    "privacy.clipping", "privacy.objective", "privacy.unit", "training.schedule", "training.engine", "training.plan",
    "training.device", "training.precision", "secagg.noise_by", "secagg.scheme",
)  # fmt: skip
# Words that are settings somewhere, and not there; and almost those.
ALMOST = (
    "Adaptive",
    "fixt",
    "clients",
    "exmaple",
    "poisson",
    "cpu:0",
    "cuda:9",
    "float16",
    "one_by_one",
    "batched-0",
    "batched--1",
)


def with_settings(*settings: str) -> tuple[str, ...]:
    return (*PLAN, *(part for setting in settings for part in ("--set", setting)))


def later_numbers(run: Run) -> Iterator[Case]:
    for table, values in ((WHOLE, NO_WHOLE), (REAL, NO_REAL)):
        for base, keys in table.items():
            for key, text in itertools.product(keys, values):
                value = ("too large",) if len(text) > 100 else (shown(text),)
                name = f"{' '.join(base)} {key}={text[:40]}"
                word: Word = (key, f"{key.partition('.')[2]} = ")
                # So many examples are more than there are of clients, which is looked at first.
                if (key, text) != ("training.cohort_size", "1" + "0" * 30):
                    yield Case(name, (with_settings(*base, f"{key}={text}"),), (word, *value), nothing)


def later_words(run: Run) -> Iterator[Case]:
    for key, text in itertools.product(TEXTS, (*NO_TEXT, *ALMOST)):
        if (key, text) not in (("privacy.unit", "clients"), ("secagg.noise_by", "clients")) or key == "privacy.unit":
            yield Case(f"{key}={text}", (with_settings(f"{key}={text}"),), (key, repr(parsed(text))), nothing)
    for text in ("nan", "1", "yes", '"true"', "[true]"):
        yield Case(f"training.fairness={text}", (with_settings(f"training.fairness={text}"),), ("training.fairness",), nothing)
    for text in ("1", "true", "[1]", "[[]]", "[nan]", "{ a = 1 }", '["run", 3]', "1979-05-27"):
        key = "privacy.earlier_runs"
        yield Case(f"{key}={text}", (with_settings(f"{key}={text}"),), (key,), nothing)


def contradictions(run: Run) -> Iterator[Case]:
    """Settings that are good by themselves and do not go together; both are named."""
    together_with: dict[tuple[str, ...], tuple[str, ...]] = {
        EXAMPLES: (
            "training.local_epochs=2", "training.local_steps=3", "training.batch_size=3", "training.proximal=0.1",
            "data.clients=3", "training.fairness=true", "secagg=paillier", "training.server_optimizer=fedavgm",
            "training.engine=flower", "training.plan=one-by-one", "data.partition=user",
        ),
        ADAPTIVE: ("privacy.mode=none",),
        (): (
            "privacy.target_quantile=0.5", "privacy.clip_norm_learning_rate=0.2", "privacy.clip_count_stddev=2.0",
            "secagg.holders=3", "secagg.noise_by=clients", "secagg.threshold=1", "training.cooldown_to=0.5",
            "participation.bins=3",
            "participation.cycle_length=3", "participation.epochs=2", "participation.max_cohort_size=3", "privacy.matrix=C.npy",
            "privacy.buffers=2", "data.clients=2", "training.cohort_size=13",
            "participation.min_separation=5",
        ),
        ENCRYPTED: (
            "secagg.threshold=2", "secagg.min_contributions=4", "secagg.min_survivors=2", "secagg.key_bits=2047",
        ),
        (*ENCRYPTED, "secagg.holders=3"): ("secagg.threshold=1", "secagg.threshold=4", "secagg.noise_by=nobody"),
        (*ENCRYPTED, "secagg.noise_by=clients"): ("secagg.min_survivors=0", "secagg.min_survivors=4"),
    }  # fmt: skip
    for base, others in together_with.items():
        for other in others:
            key = other.partition("=")[0].partition(".")[2] or "secagg"
            # There no client trains, and none is counted.
            command = with_settings(*base, other)
            if base == EXAMPLES:
                command = ("plan", "examples.toml", *command[2:])
            damage = holding("examples.toml", CONFIG.replace("clients = 12\n", "").encode())
            yield Case(f"{' '.join(base)} with {other}", (command,), (key,), damage)


def earlier_runs(run: Run) -> Iterator[Case]:
    """A run that counts on another, whose folder is none, or was damaged; and what such runs cost together."""
    plan = with_settings('privacy.earlier_runs=["run"]')
    account = ("account", "run", "--delta", "1e-5")
    lines = run.lines

    def case(what: str, damage: Damage, *words: Word) -> Case:
        return Case(what, (plan, account), words or ("run/ledger.jsonl",), damage)

    content = run.files["ledger.jsonl"]
    for bit in some(40, 8 * (len(content) - 1), seed=71):
        yield case(f"bit {bit}", holding("run/ledger.jsonl", flipped(content, bit)))
    for i in range(len(lines) - 1):
        yield case(f"without line {i + 1}", holding("run/ledger.jsonl", b"".join(lines[:i] + lines[i + 1 :])))
    for k in range(2, len(lines)):
        less = holding("run/ledger.jsonl", b"".join(lines[:-k]))
        yield case(f"rolled back by {k}", less, ("release", "metrics.jsonl", "checkpoint", "key"))
    for kind in KINDS:
        yield case(f"ledger: {kind}", becoming("run/ledger.jsonl", kind), "run", "ledger.jsonl")
        if kind not in ("link", "folder"):
            yield case(f"run: {kind}", becoming("run", kind), "run")
    for odd in ("", "nowhere", "plan.toml", "/", "/dev/zero", "run/state", "\x1b[31m", "x" * 300, "run/../nowhere"):
        text = odd.replace("\x1b", "\\u001b")
        line = with_settings(f'privacy.earlier_runs=["{text}"]')
        yield Case(f"earlier {odd[:20]!r}", (line,), (odd[:5].strip("\x1b"),), nothing)
        if odd:
            yield Case(f"account {odd[:20]!r}", (("account", odd, "--delta", "1e-5"),), (odd[:5].strip("\x1b"),), nothing)
    twice = together(nothing)
    yield Case("twice", (with_settings('privacy.earlier_runs=["run", "run"]'),), ("run",), twice)
    yield Case("account twice", (("account", "run", "run", "--delta", "1e-5"),), ("run",), twice)
