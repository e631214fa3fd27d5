"""A run with a folder: begun or resumed, trained with a line of metrics for each round, finished with model and report."""

import hashlib
import math
import os
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn
from torch.nn import functional as F  # noqa: N812 # the name that PyTorch users know

from hubbub import report
from hubbub._util import files, strict_json
from hubbub.errors import ConfigError, HubbubError, RunFolderError
from hubbub.experiment import config as configs
from hubbub.experiment.build import Run, build, with_moments
from hubbub.experiment.planner import strategy_word
from hubbub.factorization import FAMILIES
from hubbub.ledger.chain import read_chain
from hubbub.ledger.history import History
from hubbub.ledger.ledger import add_record
from hubbub.ledger.promise import Promise
from hubbub.mechanism.participation import PATTERN_WORDS, BallsInBinsSampling, FixedEpochs, sampling_word
from hubbub.training import Population, RoundResult, RunStore, SimulatedPopulation, evaluate, train
from hubbub.training.clipping import AdaptiveClipping
from hubbub.training.evaluation import Fairness, fairness
from hubbub.training.ranks import Ranks
from hubbub.training.rounds import EVALUATE, Phases
from hubbub.training.run_folder import NORMALIZATION
from hubbub.training.run_folder.record import Metrics, read_metrics
from hubbub.training.run_folder.state import CHECKPOINT

# Computed from clients' updates: for the operator alone.
PRIVATE = ("clients", "clients_per_second", "seconds", "phases", "clipped_fraction", "train_loss")


@dataclass(frozen=True, eq=False)
class RunInFolder:
    """A run with rounds left to do; make it by :meth:`begun` or :meth:`resumed`.

    A folder that was rolled back behind ``head``, a head of its ledger that was kept elsewhere, is refused.
    """

    run: Run
    folder: Path
    head: str | None = None

    @classmethod
    def begun(cls, run: Run, folder: Path, *, allow_import: bool = False, ranks: Ranks | None = None) -> "RunInFolder":
        """A new run, with its guarantee and its settings in the folder; all derived settings are written out.

        Means and variances that the settings ask for are released first, into a folder in it.
        """
        begun = cls(run, folder)
        # Before a release: a head hook that cannot be is refused here.
        store = begun.store
        if run.config.data.normalization == configs.PRIVATELY:
            run = with_moments(run, store.normalization(), allow_import=allow_import, ranks=ranks)
            begun = cls(run, folder)
        begun._require_counted()
        begun.prepare()
        with store.locked():
            if (folder / "config.toml").exists():
                raise RunFolderError(f"{folder}: another run has begun here; choose another folder with --out")
            begun.write_guarantee()
            begun._start(configs.dump(resolved(run), f"# {run.plan.promised.sentence()}\n"))
        return begun

    @classmethod
    def resumed(
        cls,
        folder: Path,
        head: str | None = None,
        *,
        allow_import: bool = False,
        ranks: Ranks | None = None,
        deployed: bool = False,
    ) -> "RunInFolder":
        """The run that a folder holds, whose settings name code that is only imported if ``allow_import``.

        Its app on a federation resumes it as ``deployed``. One with encrypted sums stays where it began, as its statement says.
        """
        missing = [name for name in ("config.toml", "ledger.jsonl") if not (folder / name).is_file()]
        # A crash right after the settings were written leaves a run with neither ledger nor release, which may begin.
        if len(missing) == 2 or (missing == ["ledger.jsonl"] and any((folder / "state").glob("releases/*"))):
            spent = "releases are there, and what they cost is spent: restore ledger.jsonl from a copy"
            step = spent if len(missing) == 1 else "start one with 'hubbub train'"
            if os.path.lexists(folder / NORMALIZATION):
                step = f"means and variances were released here: begin their run with 'hubbub train CONFIG -o {folder}'"
            raise RunFolderError(f"{folder}: is no run ({' and '.join(missing)} not there); {step}")
        layer = configs.of_run(folder)
        earlier, extends = None, None
        if not missing:
            chain = read_chain(folder / "ledger.jsonl")
            if chain.closed:
                raise RunFolderError(f"{folder}: was closed and its keys destroyed; start a new run, which counts its cost")
            # Earlier runs count as they did when this one began, even if their folders were moved.
            promise = Promise.from_record(chain.records[0], RunStore(folder).load_strategy())
            earlier, extends = promise.earlier, promise.terms.extends
            if promise.settings.get("secagg.in_process") is deployed:
                where = "in one process; resume it by 'hubbub resume'" if deployed else "on a federation; start its app there"
                raise RunFolderError(f"{folder}: its statement says where its parties are, and it was begun {where}")
        run = build(
            configs.resolve(layer),
            allow_import=allow_import,
            earlier=earlier,
            extends=extends,
            ranks=ranks,
            deployed=deployed,
        )
        found = cls(run, folder, head)
        found._require_counted()
        if missing and run.plan.earlier:
            found.write_guarantee()
            with found.store.locked():
                found._start()
        return found

    def _require_counted(self) -> None:
        """Refuse what this run would not count: earlier runs that its settings name by now, means and variances beside it."""
        counted = {charge.first for charge in self.run.plan.earlier}
        for other in self.run.config.privacy.earlier_runs or ():
            ledger = Path(other).expanduser() / "ledger.jsonl"
            if ledger.is_file() and read_chain(ledger).hashes[0] not in counted:
                raise ConfigError(
                    f"privacy.earlier_runs: {other} is none that this run counted when it began, and would not be counted now; "
                    "restore config.toml, or start a new run"
                )
        own, named = self.folder / NORMALIZATION, self.run.config.data.normalization
        if named == configs.PRIVATELY or (os.path.lexists(own) and own.resolve() != Path(named or "").expanduser().resolve()):
            raise RunFolderError(
                f"{own}: means and variances were released here, and this run would not count them; say "
                f'data.normalization = "{own.absolute()}", or choose another folder with --out'
            )

    def _start(self, settings: str = "") -> None:
        """Write its settings, and what it begins with; then record in the folder of a finished run that this one extends it."""
        finished = Path(str(self.run.config.training.extends)).expanduser()
        if self.run.start:
            from hubbub.training.warm_start import register, require_new

            require_new(finished, self.folder)
            self.run.start.write(self.folder)
        if settings:
            files.write_atomic(self.folder / "config.toml", settings.encode())
        if self.run.start:
            register(finished, self.folder, [run.first for run in self.run.plan.earlier])

    @property
    def store(self) -> RunStore:
        """The ledger, releases and checkpoints in the folder."""
        training, heads, hook = self.run.config.training, self.run.config.heads, None
        if (given := heads.url if heads.command is None else heads.command) is not None:
            from hubbub.training.head_hook import HeadHook

            try:
                hook = HeadHook(given, key=heads.key, required=heads.required)
            except HubbubError as error:
                raise ConfigError(f"[heads]: {error}") from error
        return RunStore(self.folder, keep_releases=training.keep_releases, free_share=training.free_disk, head_hook=hook)

    @property
    def rounds_measured(self) -> int:
        """The number of rounds with a line in the metrics."""
        return len(read_metrics(self.folder / "metrics.jsonl")[0])

    @property
    def rounds_released(self) -> int:
        """One more than the last round that the ledger says was released."""
        path = self.store.ledger_path
        records = read_chain(path).records if path.is_file() else []
        return max((int(record["round"]) + 1 for record in records if record["kind"] == "commit"), default=0)

    @property
    def ledger_head(self) -> str:
        """The head of the ledger as it stands on disk; empty before the first round."""
        path = self.folder / "ledger.jsonl"
        return read_chain(path).head if path.is_file() else ""

    def prepare(self) -> str:
        """The choice of how many clients are trained at once, in words; empty if others train them."""
        # Steps of small models are slower on several threads.
        torch.set_num_threads(1)
        population = self.run.population
        if self.run.config.training.engine != "process" or not isinstance(population, SimulatedPopulation):
            return ""
        return str(population.choose(self.run.model, math.ceil(self.run.plan.expected_cohort_size)))

    def write_guarantee(self) -> None:
        """Write ``guarantee.json``."""
        files.write_atomic(self.folder / "guarantee.json", strict_json.canonical(self.run.plan.promised.as_json()))

    def rounds(self, population: Population) -> Iterator[dict[str, Any]]:
        """Train with these clients; each round yields its line of the metrics.

        ``"private"`` names the values of a line that no epsilon covers.
        """
        torch.set_num_threads(1)
        store, metrics = self.store, Metrics(self.folder / "metrics.jsonl", self.run.plan.rounds)
        for result in train(self.run.plan, population, self.run.model, store, head=self.head):
            row = self._row(result)
            metrics.add(strict_json.finite_only(row), {"clip_norm": result.clip_norm, "heads_waiting": store.heads_waiting})
            yield row

    def finish(self) -> tuple[float, float]:
        """Write the model, bind it in the ledger, and write the report; returns loss and accuracy on the test examples."""
        with self.store.locked():
            self._write_model()
        report.write(self.folder)
        return self._evaluated()

    def _write_model(self) -> None:
        """Write the model, then bind it. After a crash between the two, the next start binds it."""
        path = self.folder / "ledger.jsonl"
        chain = read_chain(path)
        tensors = {name: tensor.detach().clone().contiguous() for name, tensor in self.run.model.named_parameters()}
        content = save(tensors, {"ledger_head": chain.head_of_rounds})
        history = History.of_chain(chain)
        if history.files is None:
            # By the promise, whatever became of the file meanwhile.
            self.write_guarantee()
        # In the place of releases that went, for a run that extends this one.
        stands = history.forgets or not self.run.config.training.keep_releases
        further = [CHECKPOINT] if stands and os.path.lexists(self.folder / CHECKPOINT) else []
        made = {name: self.store.digest(name) for name in ("config.toml", "guarantee.json", *further)}
        made["model.safetensors"] = hashlib.sha256(content).hexdigest()
        bound = history.files
        for name, digest in made.items():
            if bound is not None and bound.get(name) != digest:
                raise RunFolderError(
                    f"{self.folder / name}: would not be the file that the ledger binds since the run ended; restore the "
                    "folder, on the machine that trained it"
                )
        files.write_atomic(self.folder / "model.safetensors", content)
        if bound is None:
            add_record(path, {"kind": "files", "files": made})

    def fairness(self) -> Fairness:
        """Accuracy and loss by client, also written to ``private-fairness.json``, for the operator alone."""
        found = fairness(self._model_there(), self.run.examples, F.cross_entropy)
        files.write_atomic(self.folder / "private-fairness.json", strict_json.canonical(found.as_json()))
        return found

    def _evaluated(self) -> tuple[float, float]:
        dataset = self.run.dataset
        return evaluate(self._model_there(), (dataset.test_inputs, dataset.test_targets), F.cross_entropy)

    def _model_there(self) -> nn.Module:
        """The model, or a copy of it on the device that trains."""
        device = self.run.config.training.device
        return self.run.model if device == "cpu" else deepcopy(self.run.model).to(device)

    def _row(self, result: RoundResult) -> dict[str, Any]:
        """One line of the metrics: public evaluation, epsilon, private values, and the fault of an aborted round."""
        loss = accuracy = None
        clock = Phases()
        number, training = result.round_index + 1, self.run.config.training
        if number % training.evaluate_every == 0 or number == self.run.plan.rounds:
            loss, accuracy = self._evaluated()
            clock.end(EVALUATE)
        return {
            "round_index": result.round_index,
            "loss": loss,
            "accuracy": accuracy,
            "epsilon": result.epsilon,
            "delta": self.run.plan.delta,
            "clients": result.clients,
            "clients_per_second": result.clients_per_second,
            "seconds": result.seconds,
            "phases": {**result.phases, EVALUATE: result.phases.get(EVALUATE, 0.0) + clock.total},
            **({"evaluation": {one.name: one.as_json() for one in result.evaluation}} if result.evaluation else {}),
            **({"clip_norm": result.clip_norm} if self.run.plan.clip_norms.further else {}),
            **result.statistics,
            **({} if result.released else {"released": False, "fault": result.fault}),
            # Held-out training examples are clients' data, too, and a fault may name clients.
            "private": [
                *dict.fromkeys((*PRIVATE, *result.statistics)),
                *(("loss", "accuracy") if training.validation else ()),
                *(() if result.released else ("fault",)),
            ],
        }


def resolved(run: Run) -> configs.Config:
    """Settings that repeat the run on their own: absolute paths, and every derived value."""
    config, plan, terms = configs.absolute(run.config, Path.cwd()), run.plan, run.encryption
    pattern = PATTERN_WORDS.get(type(plan.participation))
    of_cohorts = {key: value for key, value in asdict(plan.participation).items() if hasattr(configs.ParticipationConfig, key)}
    sampling = config.privacy.sampling if pattern else sampling_word(plan.participation)
    privacy: dict[str, Any] = {"epsilon": None, "noise_multiplier": None, "sampling": sampling}
    if plan.mechanism is not None:
        name = strategy_word(config)
        # Of a file that holds the same strategy, the file says it.
        banded = name in FAMILIES and "bands" in FAMILIES[name].options
        privacy |= {
            "noise_multiplier": plan.mechanism.noise_multiplier,
            "strategy": name,
            "bands": getattr(plan.mechanism.strategy, "bands", None) if banded else None,
            "neighboring_relation": plan.promised.neighboring_relation,
        }
    if isinstance(plan.clip_norm, AdaptiveClipping) and plan.clip_norms.split is not None:
        privacy |= {key: getattr(plan.clip_norm, key) for key in ("target_quantile", "clip_norm_learning_rate")}
        privacy["clip_count_stddev"] = plan.clip_norms.split.count_stddev
    size = None if isinstance(plan.participation, FixedEpochs | BallsInBinsSampling) else int(plan.expected_cohort_size)
    # A resumed run then has the same last bits as one that was never interrupted. On Flower each client is on its own, whatever
    # an audit found fastest for its honest sums.
    chosen = config.training.plan
    if isinstance(run.population, SimulatedPopulation) and config.training.engine == "process":
        chosen = run.population.plan
    of_keys = ("threshold", "min_contributions", "min_survivors") if terms else ()
    # A share refers to the budget, which these settings no longer have.
    evaluation = config.evaluation
    if plan.evaluation is not None:
        evaluation = replace(evaluation, share=None, noise_multiplier=plan.evaluation.noise_multiplier)
    return replace(
        config,
        training=replace(config.training, cohort_size=size, plan=chosen),
        privacy=replace(config.privacy, **privacy),
        participation=configs.ParticipationConfig(pattern=pattern, **of_cohorts),
        secagg=replace(config.secagg, **{key: getattr(terms, key) for key in of_keys}),
        evaluation=evaluation,
    )
