"""A run as a Flower app: its ClientApp and the main function of its ServerApp; and its clients as nodes in this process."""

import functools
import logging
import runpy
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from hubbub._util.checks import integer
from hubbub._util.prf import fresh_key
from hubbub.accounting import rounded_up
from hubbub.errors import ConfigError, ParticipationError, RunFolderError
from hubbub.experiment import config as configs
from hubbub.experiment.build import ClientSide, build, client_side
from hubbub.experiment.engine.apps import RUN_APP, write_run_app
from hubbub.experiment.engine.folder import RunInFolder
from hubbub.flower.local_grid import LocalGrid
from hubbub.flower.messages import addressed, first_config, single_arrays
from hubbub.flower.mods import noising_mod
from hubbub.flower.options import promises
from hubbub.flower.population import ROUND_INDEX, GridPopulation, load, trained
from hubbub.flower.summing import Streaming
from hubbub.training import Population, SimulatedPopulation

_LOG = logging.getLogger("flwr")
_QUERY = "partition"
_PARTITION = "partition-id"


def client_app(config_file: Path) -> ClientApp:
    """The ClientApp of a run: the node with ``partition-id`` i in its configuration trains client i.

    A process loads data and model once, at its first message.
    """
    config = configs.resolve(configs.load(config_file))
    secagg = config.secagg
    if secagg.scheme == "none":
        app = ClientApp()
    else:
        from hubbub.flower.secagg_client import encrypting_mod, hold

        # The outermost first. Some of the nodes hold the key, or a share of it.
        app = hold(ClientApp(mods=[encrypting_mod, noising_mod] if secagg.noise_by == "clients" else [encrypting_mod]))

    @app.query(_QUERY)
    def tell(message: Message, context: Context) -> Message:
        return Message(RecordDict({_QUERY: ConfigRecord({_PARTITION: _partition(context)})}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        side = _client_side(config_file.read_bytes(), bool(context.run_config["allow-import"]))
        load(side.model, single_arrays(message.content))
        round_index = integer(ROUND_INDEX, first_config(message.content)[ROUND_INDEX], at_least=0)
        # On Flower no unit is an example.
        clients = cast(SimulatedPopulation, side.population)
        vector, loss = clients.train_client(_partition(context), side.model, round_index)
        return Message(trained(side.model, vector, loss), reply_to=message)

    def evaluate(message: Message, context: Context) -> Message:
        side = _client_side(config_file.read_bytes(), bool(context.run_config["allow-import"]))
        load(side.model, single_arrays(message.content))
        (found,) = side.population.measure([_partition(context)], side.model)
        return Message(RecordDict({"metrics": MetricRecord({**(found or {})})}), reply_to=message)

    if config.evaluation.statistics is not None:
        # Its answers are exact, and whoever reaches a node may ask: only where the run asks too.
        app.evaluate()(evaluate)
    return app


def serve(grid: Grid, context: Context, config_file: Path) -> None:
    """Train the run on a grid, and write its model and report into the folder ``run-folder``.

    If the folder already holds the run, it is resumed.
    """
    settings = context.run_config
    begun = _opened(config_file, settings)
    for row in begun.rounds(_clients(begun, grid, settings, float(settings["wait-for-nodes"]))):
        private = " (private)" if "accuracy" in row["private"] else ""
        measured = "" if row["accuracy"] is None else f"  accuracy {row['accuracy']:.1%}{private}"
        _LOG.info("round %s%s  epsilon %s", row["round_index"] + 1, measured, rounded_up(row["epsilon"]))
    loss, accuracy = begun.finish()
    of = "held-out training examples (private)" if begun.run.config.training.validation else "test examples"
    _LOG.info("Accuracy %.2f %%, loss %.4f on %s", 100 * accuracy, loss, of)
    _LOG.info("%s", begun.run.plan.promised.sentence())
    _LOG.info("Run folder: %s; ledger head, to keep elsewhere: %s", begun.folder, begun.ledger_head)


def local_population(begun: RunInFolder, *, allow_import: bool) -> Population:
    """Write the app of a run into its folder; the real ClientApp in it on the nodes of a federation in this process."""
    app = begun.folder / "app"
    write_run_app(app, (begun.folder / "config.toml").read_text(), allow_import=allow_import)
    settings = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    client = runpy.run_path(str(app / RUN_APP / "client_app.py"))["app"]
    clients, terms = len(begun.run.population.clients), begun.run.encryption
    configured = None
    if terms:
        from hubbub.experiment.engine.parties import local_holders

        configured = local_holders(begun, terms)
    return _clients(begun, LocalGrid(client, clients, configured, run_config=settings), settings, 0.0)


def _clients(begun: RunInFolder, grid: Grid, settings: Mapping[str, Any], patience: float) -> Population:
    nodes = _nodes(grid, len(begun.run.population.clients), patience)
    timeout = float(settings["round-timeout"])
    plain = GridPopulation(grid, nodes, lattice=begun.run.config.privacy.noise == "secure", timeout=timeout)
    terms = begun.run.encryption
    if terms is None:
        return plain
    from hubbub.experiment.engine.parties import encrypted, public_file

    return encrypted(begun, terms, grid, plain, public_file(begun, settings), timeout)


@functools.lru_cache(maxsize=1)
def _client_side(settings: bytes, allow_import: bool) -> ClientSide:
    torch.set_num_threads(1)
    config = configs.resolve(tomllib.loads(settings.decode()))
    side = client_side(config, allow_import=allow_import)
    if config.privacy.noise == "secure":
        # As in one process: by a known seed, who is missing would change the updates of all after it.
        side.population.draw_under(fresh_key())
    return side


def _partition(context: Context) -> int:
    if _PARTITION not in context.node_config:
        raise ConfigError(f"{_PARTITION}: is not in this node's configuration; start it with --node-config '{_PARTITION}=N'")
    return integer(_PARTITION, context.node_config[_PARTITION], at_least=0)


def _nodes(grid: Grid, clients: int, patience: float) -> list[int]:
    """The node of each client, in the order of the clients, as the nodes report it."""
    deadline = time.monotonic() + patience
    while len(connected := sorted(grid.get_node_ids())) < clients and time.monotonic() < deadline:
        time.sleep(1.0)
    if len(connected) < clients:
        raise ParticipationError(
            f"data.clients = {clients}: only {len(connected)} nodes are connected, each for one client; start more SuperNodes"
        )
    asked = addressed(RecordDict(), f"{MessageType.QUERY}.{_QUERY}", {str(node): node for node in connected}, wait=None)
    told = dict(asked.contents(Streaming(grid).send_and_receive(asked.messages, timeout=max(60.0, patience))))
    found: dict[int, str] = {}
    for node, content in sorted(told.items(), key=lambda item: int(item[0])):
        partition = content.config_records.get(_QUERY, ConfigRecord()).get(_PARTITION)
        if not isinstance(partition, int) or not 0 <= partition < clients:
            _LOG.warning("Node %s has partition-id %r, of which this run of %s clients has none", node, partition, clients)
        elif partition in found:
            raise ParticipationError(
                f"{_PARTITION} = {partition}: nodes {found[partition]} and {node} both claim it, and a client has one node; "
                f"give each SuperNode another --node-config '{_PARTITION}=N'"
            )
        else:
            found[partition] = node
    missing = [client for client in range(clients) if client not in found]
    if missing:
        why = f"; {asked.faults[0]}" if asked.faults else ""
        raise ParticipationError(
            f"{_PARTITION}: no node says that it is client {missing[0]}, nor {len(missing) - 1} others of {clients}{why}; give "
            f"each SuperNode its --node-config '{_PARTITION}=N', from 0 to {clients - 1}"
        )
    return [int(found[client]) for client in range(clients)]


def _opened(config_file: Path, settings: Mapping[str, Any]) -> RunInFolder:
    """The run of a deployment, begun or resumed in its folder."""
    folder, allow_import = Path(settings["run-folder"]), bool(settings["allow-import"])
    if not folder.is_absolute():
        raise ConfigError(
            f"run-folder = {str(folder)!r}: say where ledger, keys and releases are kept on the machine of the SuperLink, such "
            "as --run-config 'run-folder=\"/srv/hubbub/run-1\"'"
        )
    config = configs.resolve(configs.load(config_file))
    if (folder / "config.toml").exists():
        if configs.resolve(configs.load(folder / "config.toml")) != config:
            raise RunFolderError(f"{folder}: holds a run with other settings than this app; choose another run-folder")
        begun = RunInFolder.resumed(folder, allow_import=allow_import, deployed=True)
    else:
        run = build(config, allow_import=allow_import, deployed=True)
        begun = RunInFolder.begun(run, folder, allow_import=allow_import)
    plan = begun.run.plan
    # A client that comes back under another name would break a promised participation pattern.
    if plan.mechanism is not None and promises(plan.participation, plan.rounds) and not settings["keys-enforced"]:
        raise ConfigError(
            f"keys-enforced = false: the run promises {plan.participation}, which a client would break by coming back under a "
            "new name; let the SuperLink admit registered keys only (--enable-supernode-auth) and say --run-config "
            "'keys-enforced=true'"
        )
    return begun
