//! The options of verbs that connect to a target over TLS.

use std::path::PathBuf;

use bimetal_block::media::tls::TlsConfig;

/// How to speak TLS; without `--tls-ca` it is not spoken.
#[derive(clap::Args)]
pub(crate) struct TlsArgs {
    /// Speak TLS, and believe this authority of the target's certificate
    #[arg(long, value_name = "FILE", requires_all = ["tls_cert", "tls_key"])]
    tls_ca: Option<PathBuf>,
    /// The certificate of this end
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    tls_cert: Option<PathBuf>,
    /// The key of this end
    #[arg(long, value_name = "FILE", requires = "tls_ca")]
    tls_key: Option<PathBuf>,
    /// What the target's certificate must be for [default: its address]
    #[arg(long, value_name = "NAME", requires = "tls_ca")]
    tls_name: Option<String>,
}

impl TlsArgs {
    /// As the key `tls` of a medium.
    pub(crate) fn config(&self) -> Option<TlsConfig> {
        Some(TlsConfig {
            ca: self.tls_ca.clone()?,
            cert: self.tls_cert.clone()?,
            key: self.tls_key.clone()?,
            name: self.tls_name.clone(),
        })
    }
}
