"""The work that threads for connections take from the server's thread, with and without TLS,
compared with nbdkit.

nbdcopy reads a whole memory device by NBD over TCP, on four connections, with requests of 4 KiB at
depth 64 and of 256 KiB at depth 16, unencrypted and with TLS 1.3. The number behind `bimetal` is
its `connection_threads`; nbdkit has threads for each connection. Measured are MiB a second, and CPU
seconds for each GiB, of the whole server and of its busiest thread: the time of the busiest thread
limits the rate of a machine with enough cores. The certificates are created by the commands in
docs/tls.md.

    python3 benches connections --rounds 3
"""

import contextlib
import os
import re
import shutil
import subprocess
import time

from harness import host, options, processes, servers, tables
from harness.suite import Group, Suite

CONNS = 4
SUBJECTS = ["bimetal 0", "bimetal 1", "bimetal 2", "nbdkit"]
SHAPES = ((4096, 64), (262144, 16))


class Listening(processes.Process):
    """A server at TCP ports, one unencrypted and one with TLS."""

    def __init__(self, name, command, folder, ports, clear_name):
        super().__init__(name.replace(" ", "-"), command, folder,
                         stdout=None if name == "nbdkit" else subprocess.PIPE)
        if name != "nbdkit":
            self.expect("ready")
        self.await_ports(*ports)
        self.uris = {"clear": f"nbd://127.0.0.1:{ports[0]}/{clear_name}",
                     "TLS": f"nbds://127.0.0.1:{ports[1]}/vol?tls-certificates={folder}"}


def certificates(folder):
    """Creates certificates of an authority, a server and a client, with the file names that each
    program needs."""
    text = (host.ROOT / "docs" / "tls.md").read_text(encoding="utf-8")
    commands = re.search(r"```sh\n(.*?)```", text, re.DOTALL).group(1)
    processes.run(["sh", "-ec", commands], cwd=folder)
    for ours, theirs in (("ca.pem", "ca-cert.pem"), ("server.pem", "server-cert.pem"),
                         ("server.key", "server-key.pem"), ("box.pem", "client-cert.pem"),
                         ("box.key", "client-key.pem")):
        shutil.copy(folder / ours, folder / theirs)


def start(number, name, args, folder):
    """Starts a server; each has its own ports."""
    port = args.port + 4 * number
    if name == "nbdkit":
        # It accepts both at one port.
        command = ["nbdkit", "-f", "-e", "vol", "--tls=on", f"--tls-certificates={folder}",
                   "-p", port, "-i", "127.0.0.1", "memory", f"{args.size_mib}M"]
        return Listening(name, command, folder, (port, port), "vol")
    config = folder / f"{name.replace(' ', '-')}.toml"
    config.write_text(
        f'[device.m]\ntype = "memory"\nsize = "{args.size_mib}MiB"\n'
        + servers.export("clear", "m", f"tcp:127.0.0.1:{port}") + "default = true\n"
        + servers.export("vol", "m", f"tcp:127.0.0.1:{port + 1}")
        + 'tls = "required"\nclients = [{ name = "box.example", rights = "read-write" }]\n'
        + '[tls]\nca = "ca.pem"\ncert = "server.pem"\nkey = "server.key"\n'
        + f'[server]\nconnection_threads = {name.split()[1]}\n', encoding="utf-8")
    command = [args.binary.resolve(), "serve", config]
    return Listening(name, command, folder, (port, port + 1), "clear")


def copy(server, cell):
    """Reads the whole device and returns the duration."""
    began = time.monotonic()
    processes.run(["nbdcopy", f"--connections={CONNS}", f"--requests={cell['depth'] // CONNS}",
                   f"--request-size={cell['request_bytes']}", "--allocated",
                   server.uris[cell["channel"]], "null:"])
    return time.monotonic() - began


def measure(server, cell):
    """Returns the values of one measurement."""
    before, whole_s = server.threads_s(), server.cpu_s()
    elapsed_s = copy(server, cell)
    after, whole_s = server.threads_s(), server.cpu_s() - whole_s
    # Threads of closed connections count only in the total; remaining threads are counted
    # separately.
    stayed = [after[thread] - before[thread] for thread in after if thread in before]
    busiest_s = max(stayed) if stayed and max(stayed) > whole_s / 100 else None
    gib = cell["size_mib"] / 1024
    return {"mib_per_s": cell["size_mib"] / elapsed_s, "server_cpu_s_per_gib": whole_s / gib,
            "busiest_cpu_s_per_gib": busiest_s and busiest_s / gib}


class Connections(Suite):
    """Threads for connections."""

    name, group = "connections", "network"
    line = "threads for connections, in the clear and with TLS, beside nbdkit"
    defaults = {"rounds": 5}
    quick = {"rounds": 2, "size_mib": 256}
    axes = ("channel", "request_bytes", "depth")
    headline = ("mib_per_s",)

    def add_options(self, parser):
        parser.add_argument("--size-mib", type=int, help="of the device (default: 1024)")
        parser.add_argument("--port", type=int, default=20800, help="first of 16 ports")

    def missing(self, _args):
        return processes.missing("nbdkit", "nbdcopy", "openssl")

    def groups(self, args):
        args.size_mib = args.size_mib or 1024
        cells = [{"channel": channel, "request_bytes": size, "depth": depth,
                  "size_mib": args.size_mib}
                 for channel in ("clear", "TLS") for size, depth in SHAPES]
        cells = options.chosen(cells, args.only, self.axes)
        return [Group(cells, SUBJECTS, lambda: self.session(args))]

    def order(self, cell):
        return cell["channel"] == "TLS", cell["request_bytes"]

    @contextlib.contextmanager
    def session(self, args):
        """All servers, each with the same random content."""
        with processes.scratch("connections") as folder, contextlib.ExitStack() as stack:
            certificates(folder)
            image = folder / "image"
            with open(image, "wb") as file:
                for _ in range(args.size_mib):
                    file.write(os.urandom(1 << 20))
            running = {name: stack.enter_context(start(number, name, args, folder))
                       for number, name in enumerate(SUBJECTS)}
            for server in running.values():
                # Every page is allocated before the measurements.
                processes.run(["nbdcopy", image, server.uris["clear"]])
            image.unlink()
            yield lambda cell, subject, _turn: measure(running[subject], cell)

    def tables(self, summary):
        return {"": tables.long(
            summary, "nbdcopy over four connections",
            [("reads", lambda c: f"{c['channel']}, {c['request_bytes'] >> 10} KiB,"
                                 f" depth {c['depth']}")],
            [("MiB/s", "mib_per_s", "{:,.0f}"),
             ("CPU s/GiB", "server_cpu_s_per_gib", "{:.2f}"),
             ("busiest thread, CPU s/GiB", "busiest_cpu_s_per_gib", "{:.2f}")],
            [("MiB/s of nbdkit", "mib_per_s", "nbdkit")], SUBJECTS)}


SUITE = Connections()
