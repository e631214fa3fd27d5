"""Settings, flags, own code and folders that cannot be, or do not go together, are refused in one line, with exit code 2.

Each setting and flag with values of another type or range, and files that are damaged, are tried in ``test_malformed.py``.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import CORRELATED, raising
from hubbub.errors import ConfigError
from hubbub.experiment.config import Config, DataConfig, HeadsConfig, PrivacyConfig, TrainingConfig, of_run, resolve
from hubbub.experiment.planner import planned
from recorded_runs import hubbub
from refusals import ACCOUNT, contents, refused, settings

pytestmark = pytest.mark.usefixtures("workplace")


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("rounds=3", ["--set", "rounds=3", "section.key=value", "training.rounds=3"]),
        ("training.learning_rate=1e300", ["learning_rate", "1e+300"]),
        ("training.validation=0.999999", ["validation", "0.999999"]),
        ("training.cohort_size=11", ["training.cohort_size = 11", "10 clients"]),
        ("privacy.clip_norm=0", ["privacy.clip_norm = 0.0", "above 0"]),
        ("privacy.noise_multiplier=0", ["privacy.noise_multiplier = 0.0", 'mode = "none"']),
        ("privacy.mode=dp-sgd", ["privacy.mode = 'dp-sgd'", 'privacy.unit = "example"']),
        ("privacy.noise_multiplier=1e-200", ["noise_multiplier", "1e-200"]),
        ("privacy.stop_epsilon=1e-6", ["privacy.stop_epsilon = 1e-06", "first round"]),
        ("data.clients=2000", ["data.clients = 2000", "1437"]),
        ("data.partition=user", ["partition = 'user'", "iid"]),
        ("model.name=cnn", ["model.name = 'cnn'"]),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_a_setting_that_cannot_be_is_refused_by_its_name(assignment: str, words: list[str]) -> None:
    refused(settings("good.toml", assignment), *words)


@pytest.mark.parametrize(
    ("config", "assignments", "words"),
    [
        ("good.toml", ["privacy.noise_multiplier=1", "privacy.epsilon=1"], ["noise_multiplier", "epsilon", "give one"]),
        ("good.toml", ["privacy.noise_multiplier=default"], ["noise_multiplier", "epsilon", 'mode = "none"']),
        ("good.toml", ["privacy.strategy=tree"], ["privacy.strategy = 'tree'", "dp-ftrl"]),
        ("good.toml", ["privacy.sampling=truncated-poisson"], ["participation.max_cohort_size", "is missing"]),
        (
            "good.toml",
            ["privacy.sampling=truncated-poisson", "participation.max_cohort_size=2", "training.cohort_size=3"],
            ["participation.max_cohort_size = 2", "at least training.cohort_size = 3"],
        ),
        ("good.toml", ['evaluation.statistics=["accuracy"]'], ["evaluation.every = 10 in 2 rounds", "evaluate more often"]),
        (
            "good.toml",
            ['evaluation.statistics=["accuracy"]', "evaluation.every=1"],
            ["evaluation.noise_multiplier", "is missing", "give it, or privacy.epsilon"],
        ),
        (
            "good.toml",
            ["privacy.sampling=cyclic-poisson", "participation.cycle_length=4", "training.cohort_size=3"],
            ["participation.cycle_length = 4", "cohorts of 3", "lower it to 3", "cohort_size to 2"],
        ),
        (
            "good.toml",
            ["privacy.sampling=balls-in-bins", "participation.bins=3", "training.cohort_size=7"],
            ["training.cohort_size = 7", "3 bins"],
        ),
        (
            "correlated.toml",
            ["participation.max_cohort_size=3"],
            ["participation.max_cohort_size = 3", "'truncated-poisson'", "participation.pattern = 'min-separation'"],
        ),
        (
            "good.toml",
            ["training.server_momentum=0.5"],
            ["server_momentum = 0.5", 'does nothing without server_optimizer = "fedavgm"'],
        ),
        (
            "good.toml",
            ['evaluation.statistics=["accuracy"]', "evaluation.loss_bound=3"],
            ["loss_bound = 3", 'the statistic "loss"'],
        ),
        ("correlated.toml", ["privacy.sampling=poisson"], ["privacy.sampling = 'poisson'", "participation", "leave one"]),
        ("correlated.toml", ["privacy.bands=5"], ["privacy.bands = 5", "4"]),
        ("correlated.toml", ["training.rounds=20", "participation.min_separation=6"], ["min_separation = 6", "10"]),
        ("pattern.toml", ["participation.pattern=every-round"], ["training.cohort_size = 2", "every-round", "leave it out"]),
        ("correlated.toml", ["participation.rounds_per_epoch=100"], ["min_separation = 2", "leave it out"]),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_settings_that_contradict_each_other_are_refused(config: str, assignments: list[str], words: list[str]) -> None:
    refused(settings(config, *assignments), *words)
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TrainingConfig(rounds=0), "training.rounds = 0: must be at least 1"),
        (lambda: replace(Config().training, rounds="7"), "training.rounds = '7': must be a whole number, not str"),
        (lambda: TrainingConfig(round=3), "training.round: is no setting (did you mean 'rounds'?); known are rounds, "),
        (lambda: PrivacyConfig(earlier_runs=["one", 3]), "['one', 3]: must be a list of texts, [\"…\"], not of int"),
        (lambda: PrivacyConfig(epsilon=10**5000), "privacy.epsilon = a number of 16610 bits: is too large, must be at most"),
        (lambda: TrainingConfig(schedule_rounds=3), "training.schedule_rounds = 3: does nothing without schedule = "),
        (lambda: HeadsConfig(command=[]), "heads.command = []: must be the words of a command, or leave it out"),
        (lambda: planned(resolve({"privacy": {"mode": "none", "stop_epsilon": 3}}), 9), "privacy.stop_epsilon = 3.0 with pri"),
        (lambda: DataConfig(normalization_clip_norm=2.0), "data.normalization_clip_norm = 2.0: does nothing without norm"),
        (lambda: DataConfig(partition="iid", alpha=0.2), 'data.alpha = 0.2: does nothing without partition = "dirichlet"'),
        (lambda: replace(Config(), data=3), "data = 3: must be a DataConfig, not int"),
        (lambda: Config(dat=DataConfig()), "dat: is no setting (did you mean 'data'?); known are training, "),
        (lambda: resolve({"training": {"self": 3}}), "training.self: is no setting"),
        (lambda: resolve({"training": 3}), "training = 3: must be a section"),
        (lambda: DataConfig(normalization=" "), "data.normalization = ' ': must be \"private\", or the folder of a release"),
        (lambda: resolve(of_run(Path())), "data.normalization = 3: must be text, not int"),
    ],
)
def test_settings_made_or_replaced_in_python_are_refused_in_the_same_words(make: Callable[[], object], words: str) -> None:
    Path("config.toml").write_text("[data]\nnormalization = 3\n")
    with pytest.raises(ConfigError, match=re.escape(words)) as refusal:
        make()
    assert "pydantic" not in str(refusal.value)
    assert "validation error" not in str(refusal.value)


def test_a_flag_that_is_a_setting_is_refused_with_the_set_that_says_it() -> None:
    refused([*settings("good.toml"), "--epsilon", "3"], "No such option: --epsilon", "--set privacy.epsilon=VALUE")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("account --rounds 5 --epsilon 3", "No such option: --epsilon; 'hubbub calibrate' and 'hubbub gaussian' have it (see"),
        ("paillier keygen --grid 3", "No such option: --grid; 'hubbub sweep' has it (see 'hubbub paillier keygen --help')"),
        ("doctor --jsn", "No such option: --jsn. Did you mean --json?"),
        ("paillier", "hubbub: Missing command. (see 'hubbub paillier --help')"),
        ("calibrate --epsilon 3 --delta 1e-5", "--rounds: is missing; name --rounds and --delta of a mechanism, or a run's fo"),
        ("account --mechanism blt:buffers=x --rounds 5", "--mechanism 'blt:buffers=x': buffers: 'x' is not a whole number"),
        ("account run --rounds 5", "hubbub: --rounds: describes a mechanism"),
        ("factorize bands --rounds 5", "hubbub: FAMILY = 'bands': must be one of identity, "),
        ("train good.toml --set data.clients=1", "training.cohort_size = 2: is more than 1 client; ask for at most as many"),
    ],
)
def test_a_wrong_flag_or_part_of_one_is_named_with_what_to_type(line: str, words: str) -> None:
    refused(line.split(), words)


def test_a_file_that_cannot_be_written_is_named_without_the_number_of_the_error() -> None:
    line = ["factorize", "identity", "--rounds", "4", "-o", "/proc/x.safetensors"]
    assert "Errno" not in refused(line, "hubbub: /proc/.x.safetensors", "cannot be read or written (No such")


def test_more_processes_than_a_machine_has_memory_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    refused([*settings("good.toml"), "--nproc", "17"], "nproc = 17: must be at most 16", "3 cores")


def test_a_pattern_that_the_clients_cannot_keep_is_refused_with_advice_that_works() -> None:
    error = refused(settings("pattern.toml", "participation.pattern=single", "training.rounds=20"), "20", "10")
    assert "cohort_size to 0" not in error


def test_a_rotation_that_leaves_rounds_without_clients_is_refused() -> None:
    config = CORRELATED.replace(", cohort_size = 2", "").replace("min_separation = 2", "rounds_per_epoch = 50")
    Path("rotation.toml").write_text(config.replace("rounds = 4", "rounds = 50"))
    refused(["plan", "rotation.toml"], "rounds_per_epoch", "50", "10")


@pytest.mark.parametrize("more", ["", "--sampling-probability 0.1", "--mechanism tree", "--strategy tree"])
def test_more_rounds_than_any_memory_holds_are_refused(more: str) -> None:
    refused([*ACCOUNT, "--rounds", str(10**15), *more.split()], "rounds", str(10**15))


@pytest.mark.parametrize("more", ["", "--sampling-probability 0.1"], ids=["gaussian", "poisson"])
@pytest.mark.parametrize("value", ["1e-200", "1e-160", "1e-100", "1e300"])
def test_noise_beyond_what_can_be_computed_is_refused_by_name(value: str, more: str) -> None:
    refused([*ACCOUNT, "--noise-multiplier", value, *more.split()], "noise", repr(float(value)))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--strategy tree --bands 3", ["--bands = 3", "tree"]),
        ("--strategy banded-toeplitz --bands 6", ["--bands = 6", "5"]),
        ("--strategy banded --bands 2", ["bands = 2", "overlap"]),
        ("--strategy banded --bands 2 --column-norm-squared 1e308", ["column", "1e+308"]),
        ("--strategy dense", ["MinSeparation", "FixedEpochs", "banded"]),
        ("--strategy dense --matrix nowhere.npy", ["nowhere.npy", "No such file"]),
        ("--mechanism tree:bands=3", ["bands = 3", "tree"]),
        ("--mechanism time-varying", ["every round: say --max-participations 1"]),
        ("--mechanism banded-toeplitz:bands=2,bands=3", ["bands comes twice"]),
        ("--mechanism banded-toeplitz:bands", ["bands has no value"]),
        ("--mechanism banded-toeplitz:bands=6", ["bands = 6: must be at most 5\n"]),
        ("--json --statement", ["--json with --statement", "give one of them"]),
        ("--mechanism identity:column-norm-squared=1", ["column-norm-squared", "banded"]),
        ("--sampling-probability 0.1 --min-separation 2", ["--sampling-probability", "--min-separation"]),
        ("--cohort-size 2", ["--cohort-size", "--population"]),
        ("--cohort-size 5 --population 4", ["--cohort-size = 5", "at most 4"]),
        ("--epochs 2 --rounds-per-epoch 5", ["epochs=2", "5 rounds"]),
        ("--strategy tree --sampling-probability 0.1", ["random cohorts", "independent noise"]),
        ("--strategy banded-toeplitz --cohort-size 2 --population 10", ["random cohorts", "independent noise"]),
        ("--neighboring-relation add-or-remove-one", ["'add-or-remove-one'", "zero-out"]),
        ("--bins 20000000", ["--bins = 20000000", "at most"]),
        ("--bins 3 --sampling-probability 0.1", ["--sampling-probability with --bins", "no kind of random cohorts"]),
        ("--bins 3 --min-separation 2", ["--min-separation", "--bins", "say one of them"]),
        ("--cycle-length 3", ["--cycle-length: ", "need --sampling-probability, too"]),
        ("--cycle-length 3 --sampling-probability 0.1 --max-cohort-size 2 --population 9", ["no kind of random cohorts"]),
        ("--max-cohort-size 3 --sampling-probability 0.1", ["--max-cohort-size", "need --population, too"]),
        ("--strategy banded-toeplitz --bands 3 --cycle-length 2 --sampling-probability 0.1", ["3 bands", "cycle_length = 2"]),
        ("--strategy tree --cycle-length 2 --sampling-probability 0.1", ["BinaryTree", "square and lower triangular"]),
        ("--strategy banded-toeplitz --bands 2 --bins 2", ["BandedToeplitz", "independent noise only"]),
    ],
)
def test_account_refuses_flags_that_describe_no_mechanism(flags: str, words: list[str]) -> None:
    refused([*ACCOUNT, *flags.split()], *words)


OWN_NAMES = [("good.toml", "data.name"), ("good.toml", "model.name"), ("correlated.toml", "privacy.strategy")]


@pytest.mark.parametrize(("config", "setting"), OWN_NAMES, ids=[setting for _, setting in OWN_NAMES])
@pytest.mark.parametrize("name", ["no_such_module:Thing", "own_code:Missing", "own_code:", ":Thing", "..own_code:Gathering"])
def test_own_code_is_not_run_without_permission_and_refused_if_it_does_not_exist(config: str, setting: str, name: str) -> None:
    Path("own_code.py").write_text("open('ran', 'w').close()\n")
    refused(settings(config, f"{setting}={name}"), f"'{name}'", "--allow-import")
    assert not Path("ran").exists()
    refused([*settings(config, f"{setting}={name}"), "--allow-import"], setting.rpartition(".")[2], f"'{name}'")


def test_a_folder_that_holds_files_is_left_as_it_is() -> None:
    Path("new").mkdir()
    Path("new/.thesis.txt").write_text("years of work")
    assert "resume" not in refused(settings("good.toml"), "new", "exists already", "--out")
    assert contents(Path("new")) == {".thesis.txt": hashlib.sha256(b"years of work").hexdigest()}


def test_a_start_that_ended_before_its_settings_were_written_may_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("hubbub.experiment.engine.folder.resolved", raising(ConfigError("privacy: broken")))
        refused(settings("good.toml"), "privacy: broken")
    assert set(contents(Path("new"))) == {"guarantee.json", "state/lock"}
    assert hubbub(*settings("good.toml")) == 0
    Path("new/config.toml").unlink()
    refused(settings("good.toml"), "exists already", "hubbub resume new")


def test_a_run_that_stopped_before_its_first_round_is_resumed() -> None:
    assert hubbub(*settings("good.toml"), "--tensorboard", "/proc/self/nope") == 2
    assert not Path("new/ledger.jsonl").exists()
    refused(settings("good.toml"), "or resume it with 'hubbub resume new'")
    assert hubbub("resume", "new") == 0


@pytest.mark.parametrize(
    ("taken", "line", "words"),
    [
        ("new", settings("good.toml"), ["new", "exists already"]),
        ("file", ["train", "good.toml", "--out", "file/run"], ["file/run", "cannot be written"]),
        ("runs", ["train", "good.toml"], ["runs/good-1", "cannot be written"]),
        ("none", ["train", "good.toml", "--out", "/proc/self/run"], ["/proc/self/run", "cannot be written"]),
    ],
    ids=["the folder", "its parent", "the folder of runs", "the system's"],
)
def test_a_file_in_the_place_of_a_folder_is_left_as_it_is(taken: str, line: list[str], words: list[str]) -> None:
    Path(taken).write_text("years of work")
    refused(line, *words, "--out")
    assert Path(taken).read_text() == "years of work"
