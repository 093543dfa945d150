//! The TLS files of one end: the certificate authorities that it trusts, its certificate and its
//! key. A mistake in the files is reported in one line before the program listens or connects.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde::Deserialize;
use webpki::{EndEntityCert, KeyUsage};

/// Seconds per day.
const DAY_S: u64 = 24 * 60 * 60;
/// Maximum size of a file in bytes: hundreds of certificates.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Paths of the files of one end, all in PEM.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// File with the certificates of the authorities. One of these authorities must have issued the
    /// other end's certificate.
    pub ca: PathBuf,
    /// File with the certificate of this end, followed by any intermediate certificates.
    pub cert: PathBuf,
    /// Private key of this end.
    pub key: PathBuf,
}

/// Error in the TLS files: one line for the operator.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error from the kernel.
        error: std::io::Error,
    },
    /// A file is far too long for its purpose.
    #[error("{}: longer than {FILE_BYTES_MAX} bytes", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A file contains no item of the expected kind.
    #[error("{}: the file contains no {what} in PEM form", path.display())]
    Nothing {
        /// The file.
        path: PathBuf,
        /// The kind of item that was expected.
        what: &'static str,
    },
    /// A file is malformed.
    #[error("{}: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The mistake that was found.
        why: String,
    },
    /// The key belongs to another certificate.
    #[error("{}: this is not the key of {}", key.display(), cert.display())]
    OtherKey {
        /// The file of the key.
        key: PathBuf,
        /// The file of the certificate.
        cert: PathBuf,
    },
    /// The certificate has expired.
    #[error("{}: the certificate expired {days} days ago", path.display())]
    Expired {
        /// The file.
        path: PathBuf,
        /// Whole days since the expiry.
        days: u64,
    },
    /// The certificate is not valid yet.
    #[error("{}: the certificate is not valid before {days} days from now", path.display())]
    NotYetValid {
        /// The file.
        path: PathBuf,
        /// Whole days until it becomes valid.
        days: u64,
    },
    /// The certificate is for a different use.
    #[error("{}: the certificate is not valid for a {end}", path.display())]
    OtherUse {
        /// The file.
        path: PathBuf,
        /// `server` or `client`.
        end: &'static str,
    },
    /// The server name is neither a DNS name nor an IP address.
    #[error("`{0}` is not a valid server name")]
    Name(String),
}

/// The loaded configuration of a server.
#[derive(Clone)]
pub struct ServerTls(pub(crate) Arc<ServerConfig>);

/// The loaded configuration of a client.
#[derive(Clone)]
pub struct ClientTls {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerTls")
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientTls({:?})", self.name)
    }
}

impl TlsFiles {
    /// Returns the same files, with each path resolved by `resolve`.
    pub fn resolved(&self, resolve: impl Fn(&Path) -> PathBuf) -> TlsFiles {
        TlsFiles {
            ca: resolve(&self.ca),
            cert: resolve(&self.cert),
            key: resolve(&self.key),
        }
    }
}

impl ServerTls {
    /// Loads the files of a server. Clients must have a certificate issued by an authority in
    /// `files.ca`.
    ///
    /// # Errors
    /// The first mistake in the files.
    pub fn load(files: &TlsFiles) -> Result<ServerTls, TlsError> {
        let loaded = Loaded::read(files, "server", KeyUsage::server_auth())?;
        let malformed = |why: &dyn fmt::Display| TlsError::malformed(&files.ca, why);
        let verifier = WebPkiClientVerifier::builder_with_provider(
            Arc::new(loaded.authorities),
            Arc::clone(&loaded.provider),
        );
        let verifier = verifier.build().map_err(|error| malformed(&error))?;
        let mut config = ServerConfig::builder_with_provider(loaded.provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| malformed(&error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(loaded.chain, loaded.key)
            .map_err(|error| files.own_error(error))?;
        // Store no session state, so that a client presents its certificate in every handshake.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(ServerTls(Arc::new(config)))
    }
}

impl ClientTls {
    /// Loads the files of a client. The server must have a certificate for `name`, a DNS name or an
    /// IP address, issued by an authority in `files.ca`.
    ///
    /// # Errors
    /// The first mistake in the files, or a `name` that is neither a DNS name nor an IP address.
    pub fn load(files: &TlsFiles, name: &str) -> Result<ClientTls, TlsError> {
        let wrong = |_| TlsError::Name(name.to_owned());
        let name = ServerName::try_from(name.to_owned()).map_err(wrong)?;
        let loaded = Loaded::read(files, "client", KeyUsage::client_auth())?;
        let mut config = ClientConfig::builder_with_provider(loaded.provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| TlsError::malformed(&files.ca, &error))?
            .with_root_certificates(loaded.authorities)
            .with_client_auth_cert(loaded.chain, loaded.key)
            .map_err(|error| files.own_error(error))?;
        config.resumption = Resumption::disabled();
        Ok(ClientTls {
            config: Arc::new(config),
            name,
        })
    }
}

/// The loaded files, which servers and clients both need.
struct Loaded {
    provider: Arc<CryptoProvider>,
    authorities: RootCertStore,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Loaded {
    fn read(files: &TlsFiles, end: &'static str, usage: KeyUsage) -> Result<Loaded, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let mut authorities = RootCertStore::empty();
        for certificate in certificates(&files.ca)? {
            let added = authorities.add(certificate);
            added.map_err(|error| TlsError::malformed(&files.ca, &error))?;
        }
        let chain = certificates(&files.cert)?;
        let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?);
        let key = key.map_err(|error| pem_error(&files.key, "private key", &error))?;
        let loaded = Loaded {
            provider,
            authorities,
            chain,
            key,
        };
        loaded.check(files, end, usage)?;
        Ok(loaded)
    }

    /// Checks the certificate of this end for mistakes that would make the other end refuse it. The
    /// mistakes are reported here because the operator can correct them at this end. A certificate
    /// from an authority that this end does not trust is accepted.
    fn check(&self, files: &TlsFiles, end: &'static str, usage: KeyUsage) -> Result<(), TlsError> {
        let malformed = |error: webpki::Error| TlsError::malformed(&files.cert, &error);
        let (own, between) = self.chain.split_first().expect("a chain is not empty");
        let own = EndEntityCert::try_from(own).map_err(malformed)?;
        let verified = own.verify_for_usage(
            self.provider.signature_verification_algorithms.all,
            &self.authorities.roots,
            between,
            UnixTime::now(),
            usage,
            None,
            None,
        );
        match verified {
            Ok(_) => Ok(()),
            Err(webpki::Error::CertExpired { time, not_after }) => Err(TlsError::Expired {
                path: files.cert.clone(),
                days: time.as_secs().saturating_sub(not_after.as_secs()) / DAY_S,
            }),
            Err(webpki::Error::CertNotValidYet { time, not_before }) => {
                Err(TlsError::NotYetValid {
                    path: files.cert.clone(),
                    days: not_before.as_secs().saturating_sub(time.as_secs()) / DAY_S,
                })
            }
            Err(webpki::Error::RequiredEkuNotFoundContext(_)) => Err(TlsError::OtherUse {
                path: files.cert.clone(),
                end,
            }),
            // The certificate was issued by another authority, perhaps an authority with the same
            // name. This is no mistake, since the other end might trust that authority.
            Err(webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey) => {
                Ok(())
            }
            Err(error) => Err(malformed(error)),
        }
    }
}

impl TlsFiles {
    /// Converts an error in the certificate or the key of this end to an error that names the file.
    fn own_error(&self, error: rustls::Error) -> TlsError {
        match error {
            rustls::Error::InconsistentKeys(_) => TlsError::OtherKey {
                key: self.key.clone(),
                cert: self.cert.clone(),
            },
            rustls::Error::InvalidCertificate(_) => TlsError::malformed(&self.cert, &error),
            _ => TlsError::malformed(&self.key, &error),
        }
    }
}

impl TlsError {
    fn malformed(path: &Path, why: &dyn fmt::Display) -> TlsError {
        TlsError::Malformed {
            path: path.to_owned(),
            why: why.to_string(),
        }
    }
}

/// Reads all certificates of a file; a file without a certificate is an error.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| pem_error(path, "certificate", &error))?;
    if found.is_empty() {
        return Err(pem_error(path, "certificate", &PemError::NoItemsFound));
    }
    Ok(found)
}

fn pem_error(path: &Path, what: &'static str, error: &PemError) -> TlsError {
    let path = path.to_owned();
    match error {
        PemError::NoItemsFound => TlsError::Nothing { path, what },
        error => TlsError::malformed(&path, error),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| TlsError::Read {
            path: path.to_owned(),
            error,
        })?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let path = path.to_owned();
        return Err(TlsError::TooLong { path });
    }
    Ok(bytes)
}
