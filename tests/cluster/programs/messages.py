"""What ranks tell each other, as JSON in buffers: mpi4py's own functions for objects unpickle whatever comes, and so
run what another node sent. Put before the programs that need it."""

import ipaddress
import json
import socket
import struct

LENGTH, LONGEST = struct.Struct("!q"), 1 << 20  # bytes
SHORT = 256  # bytes of what everybody tells all


def tell(comm, value, peer, tag=0):
    data = json.dumps(value).encode()
    comm.Send(LENGTH.pack(len(data)), peer, tag)
    comm.Send(data, peer, tag)


def told(comm, peer, tag=0):
    """
    Raises:
        ValueError: it is no JSON, or longer than anything that is told.
    """
    length = bytearray(LENGTH.size)
    comm.Recv(length, peer, tag)
    (size,) = LENGTH.unpack(length)
    if not 0 < size <= LONGEST:
        raise ValueError(f"a message of {size} bytes")
    data = bytearray(size)
    comm.Recv(data, peer, tag)
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("a message that is nested too deep") from None


def told_by_all(comm, value):
    """A short value of each rank, in their order; None of one that told something else."""
    every = bytearray(SHORT * comm.size)
    comm.Allgather(json.dumps(value).encode().ljust(SHORT)[:SHORT], every)
    values = []
    for rank in range(comm.size):
        try:
            values.append(json.loads(every[rank * SHORT : (rank + 1) * SHORT]))
        except (ValueError, RecursionError):
            values.append(None)
    return values


def numbers(values, count, least, most):
    """So many whole numbers in these bounds, or None, which one node told another; all None where it told others."""
    if not isinstance(values, list) or len(values) != count:
        return [None] * count
    return [each if type(each) is int and least <= each <= most else None for each in values]


def address_of(where):
    """An address to connect to, never an option of a program, whatever was told.

    Raises:
        OSError, TypeError, ValueError: it is none, and no name of one.
    """
    return str(ipaddress.ip_address(socket.gethostbyname(where)))
