"""Token ids as arrays: uint32, shape (number of ids,)."""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

IdArray = npt.NDArray[np.uint32]
Ids = list[int] | IdArray
NO_ID = 2**32 - 1  # stands for a number that is no id, since no vocabulary is so large


def id_array(ids: Ids) -> IdArray:
    """`ids` as a uint32 array of shape (len(ids),); a number that does not fit becomes NO_ID.

    An array is returned as it is, without a copy.
    """
    if isinstance(ids, np.ndarray):
        return ids
    try:
        return np.frombuffer(array("I", ids), np.uint32)
    except OverflowError:
        return np.array([n if 0 <= n < NO_ID else NO_ID for n in ids], np.uint32)


def compact(ids: Ids) -> Ids:
    """`ids` as an array, in a tenth of a list's memory; unchanged when one of them is no id."""
    array_of_ids = id_array(ids)
    return ids if NO_ID in array_of_ids else array_of_ids
