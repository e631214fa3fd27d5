"""A client of Flower's legacy API that clips its update, and hides it where the server leaves that to clients.

This module needs the legacy API, which Flower has announced to remove; apps of the Message API use the mods.
"""

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord
from flwr.client import NumPyClient

from hubbub._util.checks import shown
from hubbub.flower.messages import NOISE_STDDEV, NORM_BIT
from hubbub.flower.mods import Request, Sent, within_by_all

__all__ = ["DPNumPyClient"]

NDArrays = list[npt.NDArray[np.generic]]
Scalar = bool | bytes | float | int | str


class DPNumPyClient(NumPyClient):
    """A ``NumPyClient`` whose updates are clipped, with the noise and the indicator that the server asks for.

    What :func:`.clipping_mod` and :func:`.noising_mod` do, with arrays matched by their position, since the legacy API has no
    names. It takes the place of Flower's ``DPFedAvgNumPyClient``; with a strategy of ``hubbub.flower`` the ``train`` of the app
    calls ``fit`` with what the message holds. A share of noise comes in whole steps of a lattice (int64), which Flower's own
    strategies do not read.

    ``evaluate``, ``get_properties`` and ``get_parameters`` pass to the wrapped client: what they return is neither clipped nor
    hidden. A client that keeps its trained model must not return it there.

    Args:
        client: The client that trains.

    Raises:
        TypeError: It is no ``NumPyClient``.
    """

    def __init__(self, client: NumPyClient) -> None:
        if not isinstance(client, NumPyClient):
            raise TypeError(f"client = {shown(client)}: must be a flwr.client.NumPyClient, not {type(client).__name__}")
        super().__init__()
        self.client = client

    def get_properties(self, config: dict[str, Scalar]) -> dict[str, Scalar]:
        """Those of the wrapped client."""
        return self.client.get_properties(config)

    def get_parameters(self, config: dict[str, Scalar]) -> NDArrays:
        """Those of the wrapped client."""
        return self.client.get_parameters(config)

    def evaluate(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[float, int, dict[str, Scalar]]:
        """That of the wrapped client."""
        return self.client.evaluate(parameters, config)

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Train, and return what may leave.

        Args:
            parameters: The global model. Floating arrays are trained; others, such as counters, are not part of the update.
            config: With ``dpfedavg_clip_norm``; see the mods for the other names.

        Returns:
            Without ``dpfedavg_noise_stddev``: the clipped parameters, and examples and metrics as the client returned them,
            with ``dpfedavg_norm_bit`` where it is asked for. With it: the noised update in steps, other arrays as they were
            sent, one example, and no metric but the noised indicator.

        Raises:
            KeyError: The server sent no clip norm.
            TypeError: A value of another type.
            ValueError: A number out of range, or arrays that are not those that were sent.
            RuntimeError: The wrapped client failed where it was to add noise: what it says of it would leave without, and
                stands in the client's log alone.
        """
        request = Request.of(config)
        before = _record(parameters)
        sent = Sent(before)
        inner = {key: value for key, value in config.items() if key != NOISE_STDDEV}
        try:
            trained, num_examples, metrics = self.client.fit(parameters, inner)
        except Exception as error:
            if request.noise_stddev is None:
                raise
            logging.getLogger("flwr").error("DPNumPyClient: fit failed, and nothing was sent", exc_info=error)
            raise RuntimeError("fit failed; see the client's log") from None
        if len(trained) != len(before):
            raise ValueError(f"fit returned {len(trained)} arrays, {len(before)} were sent: return them all, in the same order")
        after, bit = _record(trained), metrics.get(NORM_BIT) if request.counted else None
        if bit is not None and not isinstance(bit, int):
            raise TypeError(f"{NORM_BIT} = {shown(bit)}: must be 0 or 1; the name is kept for the indicator of the clip")
        if request.noise_stddev is not None:
            hidden, count = sent.hidden(after, request, bit)
            arrays = [hidden.get(name, array).numpy() for name, array in before.items()]
            return arrays, 1, {} if count is None else {NORM_BIT: count}
        clipped, within = sent.clipped(after, request.clip_norm)
        arrays = [array.numpy() for array in clipped.values()]
        if request.counted:
            metrics = {**metrics, NORM_BIT: within_by_all(within, bit)}
        return arrays, num_examples, metrics


def _record(arrays: Sequence[npt.ArrayLike]) -> ArrayRecord:
    """A copy of the arrays, named by their positions."""
    return ArrayRecord({str(position): Array(np.asarray(array)) for position, array in enumerate(arrays)})
