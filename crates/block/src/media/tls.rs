//! TLS settings for connections to another server, as in a configuration.

use std::path::PathBuf;

use bimetal_client::{TlsFiles, TlsOptions};
use serde::Deserialize;

/// Value of the key `tls`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// Certificate of the authority that signed the server's certificate.
    pub ca: PathBuf,
    /// Certificate of this client.
    pub cert: PathBuf,
    /// Private key of this client.
    pub key: PathBuf,
    /// Name that the server's certificate must be valid for; by default the address.
    pub name: Option<String>,
}

impl TlsConfig {
    /// Converts the settings to an option of a session.
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
