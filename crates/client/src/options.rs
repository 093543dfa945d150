//! What a session is asked to be.

use std::time::Duration;

use bimetal_proto::brp::Mode;
use bimetal_proto::brp::wire::{DATA_BYTES_MAX, NAME_BYTES_MAX};
use bimetal_rt::net::Address;
use bimetal_tls::{ClientTls, TlsError, TlsFiles};

/// The most paths of a session.
pub const PATHS_MAX: u32 = 16;

/// How TLS is spoken with a target. The files are read anew for each connection, so that new ones
/// are used from the next on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// The authority of the target, and the certificate and key of this end.
    pub files: TlsFiles,
    /// What the target's certificate must be for, a DNS name or an IP address; by default the
    /// address that is connected to.
    pub name: Option<String>,
}

impl TlsOptions {
    /// Reads the files, for a connection to `address`.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn load(&self, address: &Address) -> Result<ClientTls, TlsError> {
        let name = match (&self.name, address) {
            (Some(name), _) => name.clone(),
            (None, Address::Tcp(address) | Address::Rdma(address)) => address.ip().to_string(),
            (None, Address::Unix(path)) => path.display().to_string(),
        };
        ClientTls::load(&self.files, &name)
    }
}

/// What a session is asked to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the target listens; the paths take turns.
    pub addresses: Vec<Address>,
    /// The export; empty for the target's default one.
    pub export: String,
    /// Connections.
    pub paths: u32,
    /// How requests are merged.
    pub mode: Mode,
    /// Entries and data are checked end to end.
    pub crc: bool,
    /// TLS is spoken with the target; only over TCP.
    pub tls: Option<TlsOptions>,
    /// How long a target may be away before requests fail; above zero.
    pub patience: Duration,
    /// What is kept at most of the changes that a volatile target has answered; with 0 they are
    /// lost with the target, and the next flush fails.
    pub keep_bytes: u64,
}

impl Options {
    /// One path to the default export.
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

    /// Holds the values against their limits.
    ///
    /// # Errors
    /// The first that is outside of them.
    pub fn check(&self) -> Result<(), OptionsError> {
        if self.addresses.is_empty() || self.addresses.len() > PATHS_MAX as usize {
            return Err(OptionsError("1 to 16 addresses are needed"));
        }
        let is_tcp = |address: &Address| matches!(address, Address::Tcp(_));
        if self.tls.is_some() && !self.addresses.iter().all(is_tcp) {
            return Err(OptionsError(
                "TLS is for TCP, not for a UNIX socket nor RDMA",
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
                "a target must be waited for: the patience is longer than 0",
            ));
        }
        Ok(())
    }

    /// The target in words.
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

/// A value that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OptionsError(pub &'static str);
