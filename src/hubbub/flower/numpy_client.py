"""A client wrapper for Flower's legacy ``NumPyClient`` API, which Flower will remove; apps of the Message API use the mods."""

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord
from flwr.client import NumPyClient

from hubbub._util.checks import shown
from hubbub.flower.messages import NOISE_STDDEV, NORM_BIT
from hubbub.flower.mods import Request, Sent, within_by_all

NDArrays = list[npt.NDArray[np.generic]]
Scalar = bool | bytes | float | int | str


class DPNumPyClient(NumPyClient):
    """A ``NumPyClient`` whose updates are clipped, with the noise and the indicator that the server requests.

    It does the work of :func:`.clipping_mod` and :func:`.noising_mod`, with arrays matched by position, since the legacy API
    has no names. It replaces Flower's ``DPFedAvgNumPyClient``. With a strategy of ``hubbub.flower`` the app's ``train`` calls
    ``fit`` with the content of the message. Noised updates are whole steps of a lattice (int64), which Flower's own strategies
    do not read.

    ``evaluate``, ``get_properties`` and ``get_parameters`` are those of the wrapped client, without clipping or noise: they
    must not return the trained model.

    Args:
        client: The client that trains.

    Raises:
        TypeError: ``client`` is no ``NumPyClient``.

    Example:
        >>> class Trains(NumPyClient):
        ...     def fit(self, parameters, config):
        ...         return [parameters[0] + 3, parameters[1] + 4], 12, {}
        >>> sent = [np.zeros(1), np.zeros(1)]
        >>> arrays, examples, _ = DPNumPyClient(Trains()).fit(sent, {"dpfedavg_clip_norm": 1.0})
        >>> [round(float(array[0]), 3) for array in arrays], examples
        ([0.6, 0.8], 12)
    """

    def __init__(self, client: NumPyClient) -> None:
        if not isinstance(client, NumPyClient):
            raise TypeError(f"client = {shown(client)}: must be a flwr.client.NumPyClient, not {type(client).__name__}")
        super().__init__()
        self.client = client

    # Flower looks for these at the class.

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
        """Train, and return the clipped or noised parameters.

        Args:
            parameters: The global model. Floating arrays are trained; others, such as counters, are not part of the update.
            config: With ``dpfedavg_clip_norm``; see the mods for the other names.

        Returns:
            Without ``dpfedavg_noise_stddev``: the clipped parameters, and examples and metrics as the client returned them,
            with ``dpfedavg_norm_bit`` if it is requested. With it: the noised update in steps, other arrays as received, one
            example, and no metric but the noised indicator.

        Raises:
            KeyError: The server sent no clip norm.
            TypeError: A value of another type.
            ValueError: A number out of range, or arrays that do not match those received.
            RuntimeError: The wrapped client failed and noise was requested; the reason is only in the client's log.
        """
        request, before = Request.of(config), _record(parameters)
        sent, inner = Sent(before), {key: value for key, value in config.items() if key != NOISE_STDDEV}
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
    return ArrayRecord({str(position): Array(np.asarray(array)) for position, array in enumerate(arrays)})
