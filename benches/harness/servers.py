"""The servers that are measured: bimetal, nbdkit and qemu-nbd."""

import json
import subprocess

from harness import processes


def nbd_uri(socket, export=""):
    """Returns the address of an export at a UNIX socket."""
    return f"nbd+unix:///{export}?socket={socket}"


def export(name, device, listen, protocol="nbd"):
    """Returns the lines of a configuration that export a device."""
    return (f'[export.{name}]\ndevice = "{device}"\nprotocol = "{protocol}"\n'
            f'listen = "{listen}"\n')


class Bimetal(processes.Process):
    """A running `bimetal serve`, with its configuration in a folder."""

    def __init__(self, binary, folder, text, name="bimetal", formatted=(), socket="vol.sock"):
        """Writes the configuration, formats the sides if `formatted` is not `None`, and serves it.

        Returns when the server is ready. `uri` returns the address of `socket`.
        """
        self.binary, self.config = binary, folder / f"{name}.toml"
        self.socket = folder / socket
        self.config.write_text(text, encoding="utf-8")
        if formatted is not None:
            self.run("format", *formatted)
        super().__init__(name, [binary, "serve", self.config], folder, stdout=subprocess.PIPE)
        self.expect("ready")

    def uri(self, name="vol"):
        """Returns the address of an export at the socket."""
        return nbd_uri(self.socket, name)

    def run(self, verb, *words):
        """Runs a verb of the program on the configuration and returns what it printed."""
        return processes.run([self.binary, verb, self.config, *words])

    def status(self):
        """Returns the live figures. A degraded volume is a valid answer, with status 1."""
        words = [self.binary, "status", self.config, "--json"]
        return json.loads(processes.run(words, statuses=(0, 1)))

    def device(self, name="vol"):
        """Returns the status of a device from the server."""
        return self.status()["devices"][name]


def memory(binary, folder, size_mib, name="bimetal", driver="uring"):
    """Starts bimetal with a device in memory, exported by NBD."""
    device = f'[device.vol]\ntype = "memory"\nsize = "{size_mib}MiB"\n'
    return one_device(binary, folder, device, name, driver)


def file(binary, folder, image, size_mib, name="bimetal", driver="uring"):
    """Starts bimetal with a file that is accessed by direct I/O, exported by NBD."""
    device = f'[device.vol]\ntype = "file"\npath = "{image}"\nsize = "{size_mib}MiB"\n'
    return one_device(binary, folder, device, name, driver)


def one_device(binary, folder, device, name, driver):
    """Starts bimetal with the device `vol`, at a socket named after `name`."""
    text = (f'{device}\n{export("vol", "vol", f"unix:{folder}/{name}.sock")}\n'
            f'[server]\ndriver = "{driver}"\n')
    return Bimetal(binary, folder, text, name, formatted=None, socket=f"{name}.sock")


class Peer(processes.Process):
    """A server of another project, at a UNIX socket."""

    def __init__(self, name, command, folder, socket, export_name=""):
        """Starts it and waits until it listens."""
        self.socket, self._export = socket, export_name
        super().__init__(name, command, folder)
        self.await_socket(socket)

    def uri(self):
        """Returns the address of its export."""
        return nbd_uri(self.socket, self._export)


def nbdkit(folder, size_mib):
    """Starts nbdkit with its memory plugin."""
    socket = folder / "nbdkit.sock"
    return Peer("nbdkit", ["nbdkit", "-f", "-U", socket, "memory", f"{size_mib}M"], folder, socket)


def qemu_nbd(folder, image, how=(), export_name=""):
    """Starts qemu-nbd with a raw file."""
    socket = folder / "qemu-nbd.sock"
    command = ["qemu-nbd", "-k", socket, "-f", "raw", "-x", export_name, "-t", "-e", "8", *how,
               image]
    return Peer("qemu-nbd", command, folder, socket, export_name)
