#!/usr/bin/env python3
"""What threads for connections take off the server's thread, with TLS and without, beside nbdkit.

NBD over TCP on a memory device, which nbdcopy reads as a whole over four connections, by requests of 4 KiB at
depth 64 and of 256 KiB at depth 16, in the clear and with TLS 1.3, for bimetal with `connection_threads` of
0, 1 and 2 and for nbdkit (which has threads for each connection). The figures are MiB per second, and
CPU seconds per GiB of the whole server and of its busiest thread: what the busiest thread needs
bounds what a machine with enough cores can serve.

The servers run side by side and take turns within a round; the figure is the median of the rounds. The
certificates are made by the commands of docs/tls.md.

    cargo build --release && benches/connections.py
"""

import argparse
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile
import time

import brp
import nbd

CONNS = 4
CELLS = [(tls, size, depth) for tls in (False, True) for size, depth in ((4096, 64), (262144, 16))]
SUBJECTS = ("bimetal 0", "bimetal 1", "bimetal 2", "nbdkit")
PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "tls.md"


class Listening(nbd.Server):
    """A server at ports of TCP, one in the clear and one with TLS."""

    def __init__(self, name, command, folder, port, tls_port, ready):
        # Sockets of TCP have no file, so the folder stands for it, and the ports are waited for.
        super().__init__(name, command, folder, "vol", folder, ready)
        brp.wait_for_ports({port, tls_port})
        self.uris = {False: f"nbd://127.0.0.1:{port}/vol",
                     True: f"nbds://127.0.0.1:{tls_port}/vol?tls-certificates={folder}"}

    def threads_s(self):
        """CPU seconds of each thread so far, by its number."""
        found = {}
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            try:
                stat = (task / "schedstat").read_text(encoding="utf-8")
            except FileNotFoundError:
                continue  # it has just ended
            found[task.name] = int(stat.split()[0]) / 1e9
        return found


def certificates(folder):
    """An authority, a server and a client, by the names that each program wants."""
    text = PAGE.read_text(encoding="utf-8")
    commands = re.search(r"```sh\n(.*?)```", text, re.DOTALL).group(1)
    subprocess.run(["sh", "-ec", commands], cwd=folder, check=True, capture_output=True)
    for ours, theirs in (("ca.pem", "ca-cert.pem"), ("server.pem", "server-cert.pem"),
                         ("server.key", "server-key.pem"), ("box.pem", "client-cert.pem"),
                         ("box.key", "client-key.pem")):
        shutil.copy(folder / ours, folder / theirs)


def start(number, name, args, folder):
    """Starts a server; each has ports of its own."""
    port = args.port + 4 * number
    if name == "nbdkit":
        # It speaks both ways at one port.
        command = ["nbdkit", "-f", "-e", "vol", "--tls=on", f"--tls-certificates={folder}",
                   "-p", str(port), "-i", "127.0.0.1", "memory", f"{args.size_mib}M"]
        return Listening(name, command, folder, port, port, ready=False)
    config = folder / f"{name.replace(' ', '-')}.toml"
    export = ('[export.{}]\ndevice = "m"\nprotocol = "nbd"\nlisten = "tcp:127.0.0.1:{}"\n')
    config.write_text(
        f'[device.m]\ntype = "memory"\nsize = "{args.size_mib}MiB"\n'
        + export.format("clear", port) + "default = true\n"
        + export.format("vol", port + 1)
        + 'tls = "required"\nclients = [{ name = "box.example", rights = "read-write" }]\n'
        + '[tls]\nca = "ca.pem"\ncert = "server.pem"\nkey = "server.key"\n'
        + f'[server]\nconnection_threads = {name.split()[1]}\n',
        encoding="utf-8")
    command = [str(args.binary.resolve()), "serve", str(config)]
    server = Listening(name, command, folder, port, port + 1, ready=True)
    server.uris[False] = f"nbd://127.0.0.1:{port}/clear"
    return server


def copy(server, cell):
    """Reads the whole device, and says how long it took."""
    tls, size, depth = cell
    began = time.monotonic()
    subprocess.run(["nbdcopy", f"--connections={CONNS}", f"--requests={depth // CONNS}",
                    f"--request-size={size}", "--allocated", server.uris[tls], "null:"], check=True, timeout=600)
    return time.monotonic() - began


def measure(server, cell, args):
    """One measurement."""
    before, whole = server.threads_s(), server.cpu_s()
    elapsed_s = copy(server, cell)
    after, whole = server.threads_s(), server.cpu_s() - whole
    # Threads that a connection had are gone, and in the whole; those that stay are told apart.
    stayed = [after[thread] - before[thread] for thread in after if thread in before]
    busiest = max(stayed) if stayed and max(stayed) > whole / 100 else None
    gib = args.size_mib / 1024
    return {"mib_per_s": args.size_mib / elapsed_s, "server_cpu_s_per_gib": whole / gib,
            "busiest_cpu_s_per_gib": busiest and busiest / gib}


def median(found, figure):
    """The median of a figure, where it is known."""
    known = [result[figure] for result in found if result[figure] is not None]
    return statistics.median(known) if known else None


def print_table(results):
    """The medians, a row a cell and subject."""
    print("\n| reads | server | MiB/s | of nbdkit | CPU s/GiB | busiest thread, CPU s/GiB |")
    print("|---|---|---|---|---|---|")
    for cell in CELLS:
        tls, size, depth = cell
        peer = median(results[cell, "nbdkit"], "mib_per_s")
        for name in SUBJECTS:
            found = results[cell, name]
            speed, busiest = median(found, "mib_per_s"), median(found, "busiest_cpu_s_per_gib")
            shown = "-" if busiest is None else f"{busiest:.2f}"
            print(f"| {'TLS' if tls else 'clear'}, {size >> 10} KiB, depth {depth} | {name} | {speed:,.0f} |"
                  f" {speed / peer:.2f} | {median(found, 'server_cpu_s_per_gib'):.2f} | {shown} |")


def main():
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=pathlib.Path, default="target/release/bimetal")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--port", type=int, default=20800)
    args = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="bimetal-connections-"))
    servers = []
    try:
        certificates(folder)
        image = folder / "image"
        with open(image, "wb") as file:
            for _ in range(args.size_mib):
                file.write(os.urandom(1 << 20))
        servers = [start(number, name, args, folder) for number, name in enumerate(SUBJECTS)]
        results = {(cell, name): [] for cell in CELLS for name in SUBJECTS}
        for server in servers:
            # Every page is there before anything is measured.
            subprocess.run(["nbdcopy", image, server.uris[False]], check=True, timeout=600)
        image.unlink()
        for turn in range(args.rounds):
            for cell in CELLS:
                for server in servers[turn % 4:] + servers[:turn % 4]:
                    result = measure(server, cell, args)
                    results[cell, server.name].append(result)
                    print(f"{turn + 1}/{args.rounds} {cell} {server.name:10} {result['mib_per_s']:9.0f} MiB/s",
                          flush=True)
        print_table(results)
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
