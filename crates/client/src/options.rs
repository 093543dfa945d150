//! Options of a session.

use std::time::Duration;

use bimetal_proto::brp::Mode;
use bimetal_proto::brp::wire::{DATA_BYTES_MAX, NAME_BYTES_MAX};
use bimetal_rt::net::Address;
use bimetal_tls::{ClientTls, TlsError, TlsFiles};

/// Maximum number of paths of a session.
pub const PATHS_MAX: u32 = 16;

/// TLS options of the connections to a target. The files are read again for each connection, so
/// replaced files take effect with the next connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// TLS files: the certificates of the authorities, one of which must have issued the target's
    /// certificate, and the certificate and the private key of this end.
    pub files: TlsFiles,
    /// Name that the target's certificate must have: a DNS name or an IP address. If it is `None`,
    /// the certificate must be for the address to which this end connects.
    pub name: Option<String>,
}

impl TlsOptions {
    /// Loads the TLS files for a connection to `address`.
    ///
    /// # Errors
    /// The first mistake in the files.
    pub fn load(&self, address: &Address) -> Result<ClientTls, TlsError> {
        let name = match (&self.name, address) {
            (Some(name), _) => name.clone(),
            (None, Address::Tcp(address) | Address::Rdma(address)) => address.ip().to_string(),
            (None, Address::Unix(path)) => path.display().to_string(),
        };
        ClientTls::load(&self.files, &name)
    }
}

/// Options of a session.
#[derive(Clone, Debug)]
pub struct Options {
    /// Addresses of the target; the paths use them in turn.
    pub addresses: Vec<Address>,
    /// Name of the export; empty for the target's default one.
    pub export: String,
    /// Number of paths, each with its own connection.
    pub paths: u32,
    /// How requests are merged.
    pub mode: Mode,
    /// True to protect entries and data with end-to-end checks.
    pub crc: bool,
    /// TLS options; `None` connects without TLS. Only for TCP.
    pub tls: Option<TlsOptions>,
    /// Maximum time for which a target can be unreachable before requests fail. It must be above
    /// zero.
    pub patience: Duration,
    /// Maximum number of bytes of answered changes that the session keeps, to send them again after
    /// the death of a volatile target (one that loses unflushed changes when it dies). With 0, no
    /// changes are kept: if the target dies, the changes since the last flush are lost, and the
    /// next flush fails.
    pub keep_bytes: u64,
}

impl Options {
    /// Creates the options of one path to the default export.
    pub fn new(address: Address) -> Options {
        Options {
            addresses: vec![address],
            export: String::new(),
            paths: 1,
            mode: Mode::Adaptive,
            crc: false,
            tls: None,
            patience: Duration::from_secs(30),
            keep_bytes: 2 * u64::from(DATA_BYTES_MAX),
        }
    }

    /// Checks the values against their limits.
    ///
    /// # Errors
    /// The first value outside its limits.
    pub fn check(&self) -> Result<(), OptionsError> {
        if self.addresses.is_empty() || self.addresses.len() > PATHS_MAX as usize {
            return Err(OptionsError("1 to 16 addresses are needed"));
        }
        let is_tcp = |address: &Address| matches!(address, Address::Tcp(_));
        if self.tls.is_some() && !self.addresses.iter().all(is_tcp) {
            return Err(OptionsError(
                "TLS is possible over TCP only, not over a UNIX socket or RDMA",
            ));
        }
        if self.export.len() > NAME_BYTES_MAX || self.export.contains('\0') {
            return Err(OptionsError(
                "the name of an export has at most 1024 bytes and no NUL",
            ));
        }
        if self.paths == 0 || self.paths > PATHS_MAX {
            return Err(OptionsError("a session has 1 to 16 connections"));
        }
        if self.patience.is_zero() {
            return Err(OptionsError(
                "the time to wait for a target must be longer than 0",
            ));
        }
        Ok(())
    }

    /// Returns a description of the target for messages.
    pub(crate) fn target(&self) -> String {
        let addresses: Vec<String> = self.addresses.iter().map(Address::to_string).collect();
        let addresses = addresses.join(", ");
        if self.export.is_empty() {
            format!("the default export at {addresses}")
        } else {
            format!("export {} at {addresses}", self.export)
        }
    }
}

/// An option value that is not permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OptionsError(pub &'static str);
