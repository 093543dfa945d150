#!/usr/bin/env python3
"""Executes a program under a seccomp filter that makes some system calls fail.

Usage: deny-calls.py ERROR CALL,CALL... PROGRAM [ARGUMENT...]
ERROR is the name of an error, such as EPERM; each CALL is io_uring_setup, io_uring_enter or
io_uring_register. Everything else is allowed. Container engines deny these three with EPERM.
"""
import ctypes
import errno
import os
import sys

# The numbers are the same on every machine (Linux, include/uapi/asm-generic/unistd.h).
NUMBERS = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427}
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERROR = 0x7FFF0000, 0x00050000


class Instruction(ctypes.Structure):
    """`struct sock_filter`."""

    _fields_ = [("code", ctypes.c_ushort), ("true", ctypes.c_ubyte),
                ("false", ctypes.c_ubyte), ("value", ctypes.c_uint)]


class Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Instruction))]


def main():
    error, calls, command = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
    # The first word of a filter's input is the number of the system call.
    instructions = [Instruction(LOAD_WORD, 0, 0, 0)]
    for call in calls:
        instructions.append(Instruction(JUMP_IF_EQUAL, 0, 1, NUMBERS[call]))
        instructions.append(Instruction(RETURN, 0, 0, ERROR | getattr(errno, error)))
    instructions.append(Instruction(RETURN, 0, 0, ALLOW))
    program = Program(len(instructions), (Instruction * len(instructions))(*instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    for option, first, second in [(PR_SET_NO_NEW_PRIVS, 1, 0),
                                  (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program))]:
        if libc.prctl(option, first, second, 0, 0) != 0:
            sys.exit(f"prctl({option}): {os.strerror(ctypes.get_errno())}")
    os.execvp(command[0], command)


main()
