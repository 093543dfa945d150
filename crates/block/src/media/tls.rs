//! How TLS is spoken with another server, as configurations say it.

use std::path::PathBuf;

use bimetal_client::{TlsFiles, TlsOptions};
use serde::Deserialize;

/// The key `tls`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The certificate of the server's authority.
    pub ca: PathBuf,
    /// The certificate of this end.
    pub cert: PathBuf,
    /// The key of this end.
    pub key: PathBuf,
    /// What the server's certificate must be for; by default the address.
    pub name: Option<String>,
}

impl TlsConfig {
    /// As an option of a session.
    pub fn options(&self) -> TlsOptions {
        TlsOptions {
            files: TlsFiles {
                ca: self.ca.clone(),
                cert: self.cert.clone(),
                key: self.key.clone(),
            },
            name: self.name.clone(),
        }
    }
}
