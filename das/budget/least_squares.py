"""Least squares in NumPy for models with few parameters, all of them positive or zero."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def positive(residuals: Callable[[Array], Array], starts: Iterable[Sequence[float]]) -> Array:
    """Parameters > 0 with the least sum of squared residuals: the best of Levenberg-Marquardt runs from every start."""
    minima = [_descend(lambda logs: residuals(np.exp(logs)), np.log(start)) for start in starts]
    return np.exp(min(minima, key=lambda minimum: minimum[0])[1])


def _descend(residuals: Callable[[Array], Array], p: Array) -> tuple[float, Array]:
    """Levenberg-Marquardt: (sum of squares, parameters). Parameters are logarithms, so one step size suits all."""
    step, damping = 1e-6, 1e-3
    r = residuals(p)
    for _ in range(200):
        shifts = np.eye(len(p)) * step
        jacobian = np.stack([(residuals(p + s) - residuals(p - s)) / (2 * step) for s in shifts], axis=1)
        squares = jacobian.T @ jacobian
        # The small terms keep the system solvable where a parameter has no effect.
        scale = np.diag(squares.diagonal() + 1e-12 * np.trace(squares) + 1e-300)
        moved = np.clip(np.linalg.solve(squares + damping * scale, -jacobian.T @ r), -2, 2)
        tried = residuals(p + moved)
        if tried @ tried < r @ r:
            p, r, damping = p + moved, tried, damping / 10
            if np.abs(moved).max() < 1e-10:
                break
        else:
            damping *= 10
            if damping > 1e12:
                break
    return float(r @ r), p


def linear(columns_N_p: Array, seconds_N: Array, weights_N: Array) -> Array:
    """Coefficients >= 0 of the columns, by weighted least squares. A coefficient that would be negative is set to 0."""
    root = np.sqrt(weights_N)
    columns, seconds = columns_N_p * root[:, None], seconds_N * root
    size = np.sqrt(np.einsum("np,np->p", columns, columns))
    used = np.flatnonzero(size)  # columns
    coefficients = np.zeros(columns.shape[1])
    while len(used):
        solution = np.linalg.lstsq(columns[:, used] / size[used], seconds, rcond=None)[0]
        if (solution >= 0).all():
            coefficients[used] = solution / size[used]
            break
        used = np.delete(used, int(solution.argmin()))
    return coefficients
