"""Linear least squares in NumPy for models with few coefficients, all of them positive or zero."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def linear(columns_N_p: Array, seconds_N: Array, weights_N: Array) -> Array:
    """Fit seconds_N = columns_N_p @ coefficients by weighted least squares. Returns the coefficients [p]; one that
    would be negative is set to 0."""
    root = np.sqrt(weights_N)
    columns, seconds = columns_N_p * root[:, None], seconds_N * root
    size = np.sqrt(np.einsum("np,np->p", columns, columns))
    used = np.flatnonzero(size)  # indices of the columns that are in the fit
    coefficients = np.zeros(columns.shape[1])
    while len(used):
        solution = np.linalg.lstsq(columns[:, used] / size[used], seconds, rcond=None)[0]
        if (solution >= 0).all():
            coefficients[used] = solution / size[used]
            break
        used = np.delete(used, int(solution.argmin()))
    return coefficients
