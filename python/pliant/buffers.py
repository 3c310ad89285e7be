"""Memory of others as the core sees it: an address, a number of elements and their type.

Whatever has the buffer protocol (bytes, bytearray, array, memoryview, numpy arrays) and torch's
tensors are taken as they are; nothing is copied, so they must be contiguous.
"""

from __future__ import annotations

import ctypes
import enum
import sys
from typing import Any, Dict, NamedTuple, Optional, Union

from .errors import Invalid


class DType(enum.IntEnum):
    """The type of a buffer's elements."""

    I8 = 0
    I16 = 1
    I32 = 2
    I64 = 3
    U8 = 4
    U16 = 5
    U32 = 6
    U64 = 7
    BOOL = 8
    F16 = 9
    BF16 = 10
    F32 = 11
    F64 = 12
    F8_E4M3 = 13
    F8_E5M2 = 14

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return _SIZES[self]


class Op(enum.IntEnum):
    """How elements are reduced."""

    SUM = 0
    MEAN = 1
    MIN = 2
    MAX = 3
    PROD = 4


_SIZES = (1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 2, 4, 8, 1, 1)
_DTYPES = {dtype.name.lower(): dtype for dtype in DType}
_OPS: Dict[Any, int] = {**{op.name.lower(): int(op) for op in Op}, **{op: int(op) for op in Op}}
# Of the buffer protocol; `long` has the size of this machine.
_FORMATS = {"b": DType.I8, "h": DType.I16, "i": DType.I32, "q": DType.I64, "B": DType.U8,
            "H": DType.U16, "I": DType.U32, "Q": DType.U64, "?": DType.BOOL, "e": DType.F16,
            "f": DType.F32, "d": DType.F64, "c": DType.U8,
            "l": DType.I64 if ctypes.sizeof(ctypes.c_long) == 8 else DType.I32,
            "L": DType.U64 if ctypes.sizeof(ctypes.c_long) == 8 else DType.U32}
#: The format of a memoryview of these elements; those without one are seen as unsigned numbers.
FORMATS = {DType.I8: "b", DType.I16: "h", DType.I32: "i", DType.I64: "q", DType.U8: "B",
           DType.U16: "H", DType.U32: "I", DType.U64: "Q", DType.BOOL: "?", DType.F16: "H",
           DType.BF16: "H", DType.F32: "f", DType.F64: "d", DType.F8_E4M3: "B",
           DType.F8_E5M2: "B"}
_TORCH_DTYPES = {"int8": DType.I8, "int16": DType.I16, "int32": DType.I32, "int64": DType.I64,
                 "uint8": DType.U8, "uint16": DType.U16, "uint32": DType.U32,
                 "uint64": DType.U64, "bool": DType.BOOL, "float16": DType.F16,
                 "bfloat16": DType.BF16, "float32": DType.F32, "float64": DType.F64,
                 "float8_e4m3fn": DType.F8_E4M3, "float8_e5m2": DType.F8_E5M2}


class _PyBuffer(ctypes.Structure):
    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int),
                ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p),
                ("internal", ctypes.c_void_p)]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_PyBuffer)]
_release_buffer.restype = None


class Buffer(NamedTuple):
    """An address, elements from there on, and what keeps them there."""

    address: Optional[int]
    count: int
    dtype: int
    owner: Any


NOTHING = Buffer(None, 0, int(DType.U8), None)


def dtype_of(name: Union[str, int]) -> DType:
    """A type by its number or its name: "f32"."""
    try:
        return DType(name) if isinstance(name, int) else _DTYPES[name]
    except (KeyError, ValueError):
        raise Invalid(f"{name!r} is no type of elements; there are "
                      f"{', '.join(_DTYPES)}") from None


def op_of(name: Union[str, int]) -> int:
    """An operator by its number or its name: "sum"."""
    try:
        return _OPS[name]
    except (KeyError, TypeError):
        raise Invalid(f"{name!r} is no operator; there are sum, mean, min, max, prod") from None


def buffer_of(value: Any, what: str, dtype: Union[str, int, None] = None) -> Buffer:
    """The memory of `value`, to be read; `what` names it in errors."""
    return _described(value, what, dtype, False)


def writable_buffer_of(value: Any, what: str, dtype: Union[str, int, None] = None) -> Buffer:
    """The memory of `value`, to be written."""
    return _described(value, what, dtype, True)


def _described(value: Any, what: str, dtype: Union[str, int, None], writes: bool) -> Buffer:
    torch = sys.modules.get("torch")
    tensor_type = getattr(torch, "Tensor", None)
    if tensor_type is not None and isinstance(value, tensor_type):
        found = _of_tensor(value, what)
    else:
        found = _of_protocol(value, what, dtype, writes)
    return found if dtype is None else _retyped(found, what, dtype_of(dtype))


def _retyped(found: Buffer, what: str, dtype: DType) -> Buffer:
    bytes_all = found.count * _SIZES[found.dtype]
    if bytes_all % _SIZES[dtype]:
        raise Invalid(f"{what} has {bytes_all} bytes, which are no whole {dtype.name.lower()}")
    return Buffer(found.address, bytes_all // _SIZES[dtype], int(dtype), found.owner)


_codes: Dict[Any, int] = {}  # of torch's types, as they are met


def _of_tensor(tensor: Any, what: str) -> Buffer:
    code = _codes.get(tensor.dtype)
    if code is None:
        name = str(tensor.dtype).partition(".")[2]
        if name not in _TORCH_DTYPES:
            raise Invalid(f"{what} is a tensor of {tensor.dtype}, which cannot be moved; convert "
                          "it, or view it as another type")
        code = _codes[tensor.dtype] = int(_TORCH_DTYPES[name])
    if tensor.device.type != "cpu":
        raise Invalid(f"{what} is a tensor on {tensor.device}; only memory of the host can be "
                      "moved: give tensor.cpu()")
    if tensor.is_sparse or not tensor.is_contiguous():
        raise Invalid(f"{what} is a tensor that is not contiguous, of shape "
                      f"{tuple(tensor.shape)}; give tensor.contiguous()")
    return Buffer(tensor.data_ptr() or None, tensor.numel(), code, tensor)


def _of_protocol(value: Any, what: str, dtype: Union[str, int, None], writes: bool) -> Buffer:
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"{what} is {type(value).__name__}; a tensor or an object with the buffer "
                        "protocol is needed (array, bytearray, numpy array)") from None
    if not view.c_contiguous:
        raise Invalid(f"{what} is not contiguous; copy it first (numpy.ascontiguousarray)")
    if writes and view.readonly:
        raise Invalid(f"{what} is read-only; a result cannot be written there")
    code = _FORMATS.get(view.format.lstrip("@=<"))
    if code is None and dtype is None:
        raise Invalid(f"{what} has elements of format {view.format!r}, which is none of ours; "
                      "say which type they are: dtype=\"bf16\"")
    raw = _PyBuffer()
    _get_buffer(view, raw, 0)
    address = raw.buf
    _release_buffer(raw)
    if code is None:
        return Buffer(address, view.nbytes, int(DType.U8), view)
    return Buffer(address, view.nbytes // view.itemsize, int(code), view)
