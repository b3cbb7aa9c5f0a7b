"""Token ids as arrays."""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

IdArray = npt.NDArray[np.uint32]
Ids = list[int] | IdArray
NO_ID = 2**32 - 1


def id_array(ids: Ids) -> IdArray:
    """`ids` as an array; what is no number of 32 bits, and so no id, as NO_ID."""
    if isinstance(ids, np.ndarray):
        return ids
    try:
        return np.frombuffer(array("I", ids), np.uint32)
    except OverflowError:
        return np.array([n if 0 <= n < NO_ID else NO_ID for n in ids], np.uint32)


def compact(ids: Ids) -> Ids:
    """`ids` as an array, a tenth of a list's memory; as they came when one of them is no id."""
    found = id_array(ids)
    return ids if len(found) and found.max() == NO_ID else found
