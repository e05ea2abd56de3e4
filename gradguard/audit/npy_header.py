"""The header of a `.npy` file that may be damaged."""

from __future__ import annotations

import warnings
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np


def read_dtype(file: BinaryIO) -> np.dtype[Any]:
    """Return the dtype of the rows; the file is then at the first of them.

    numpy parses the header as a literal of Python, without running it, and answers damage with errors of the parser.

    Raises:
        ValueError: it is no header, or one of another format than (1, 0).
    """
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"format {version} of a .npy file, expected (1, 0)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a damaged header may look like one of Python 2
            _, _, dtype = np.lib.format.read_array_header_1_0(file)
    except (SyntaxError, TokenError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(f"a damaged header: {error}") from None
    return dtype
