//! TLS options of the verbs that connect to a BRP target.

use std::path::PathBuf;

use bimetal_block::media::tls::TlsConfig;

/// TLS options; TLS is used only with `--tls-ca`.
#[derive(clap::Args)]
pub(crate) struct TlsArgs {
    /// Use TLS, and trust this certificate authority for the target's certificate
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_key"])]
    tls_ca: Option<PathBuf>,
    /// Certificate of this client
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    tls_cert: Option<PathBuf>,
    /// Private key of this client
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    tls_key: Option<PathBuf>,
    /// Name for which the target's certificate must be valid [default: the target's address]
    #[arg(long, value_name = "NAME", requires = "tls_ca")]
    tls_name: Option<String>,
}

impl TlsArgs {
    /// Converts the options to the value of a medium's key `tls`; `None` without `--tls-ca`.
    pub(crate) fn config(&self) -> Option<TlsConfig> {
        Some(TlsConfig {
            ca: self.tls_ca.clone()?,
            cert: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
            name: self.tls_name.clone(),
        })
    }
}
