//! Parsing of the URI of a volume: the address of its target, its export, and the options of the
//! session.
//!
//! There are four forms: `brp://ADDRESS:PORT/EXPORT`; `brps://ADDRESS:PORT/EXPORT`, the same over
//! TLS; `brp+rdma://ADDRESS:PORT/EXPORT`, the same over RDMA; and `brp+unix://PATH?export=EXPORT`.
//! An unknown option is rejected, never ignored: otherwise a misspelt option would silently have no
//! effect.

use std::path::PathBuf;
use std::time::Duration;

use bimetal_rt::net::Address;

use bimetal_tls::TlsFiles;

use crate::options::{Options, OptionsError, TlsOptions};

impl Options {
    /// Parses a URI of the form `brp://ADDRESS:PORT/EXPORT`, `brps://ADDRESS:PORT/EXPORT`,
    /// `brp+rdma://ADDRESS:PORT/EXPORT` or `brp+unix://PATH?export=EXPORT`. After `?`, the options
    /// `export`, `connections` (1 to 16), `crc` (`0` or `1`) and `patience_s` are permitted, each
    /// once and separated by `&`. For `brps`, `ca`, `cert` and `key` are required, and `tls_name`
    /// is permitted. `%XX` encodes a byte.
    ///
    /// # Errors
    /// The first mistake. The options of an accepted URI have been [checked](Options::check).
    pub fn from_uri(uri: &str) -> Result<Options, OptionsError> {
        let (place, query) = uri.split_once('?').unwrap_or((uri, ""));
        let (place, encrypted) = match place.strip_prefix("brps://") {
            Some(rest) => (format!("brp://{rest}"), true),
            None => (place.to_owned(), false),
        };
        let mut options = if let Some(path) = place.strip_prefix("brp+unix://") {
            Options::new(unix(path)?)
        } else if let Some(rest) = place.strip_prefix("brp+rdma://") {
            inet("rdma", rest)?
        } else if let Some(rest) = place.strip_prefix("brp://") {
            inet("tcp", rest)?
        } else {
            return Err(OptionsError(
                "a URI must begin with brp://, brps://, brp+rdma:// or brp+unix:///",
            ));
        };
        options.tls = encrypted.then(no_files);
        let mut seen = Vec::new();
        for (key, value) in query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        {
            if seen.contains(&key) {
                return Err(OptionsError("an option may appear only once in a URI"));
            }
            seen.push(key);
            options.set(key, &decoded(value)?)?;
        }
        if options.tls.as_ref().is_some_and(|tls| !is_complete(tls)) {
            return Err(OptionsError("brps:// requires ca, cert and key"));
        }
        options.check()?;
        Ok(options)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), OptionsError> {
        match key {
            "export" if self.export.is_empty() => value.clone_into(&mut self.export),
            "export" => return Err(OptionsError("the URI names two exports")),
            "connections" => self.paths = number(value)?,
            "crc" => {
                self.crc = match value {
                    "0" => false,
                    "1" => true,
                    _ => return Err(OptionsError("crc must be 0 or 1")),
                }
            }
            "patience_s" => self.patience = Duration::from_secs(number(value)?.into()),
            "ca" => self.tls()?.files.ca = PathBuf::from(value),
            "cert" => self.tls()?.files.cert = PathBuf::from(value),
            "key" => self.tls()?.files.key = PathBuf::from(value),
            "tls_name" => self.tls()?.name = Some(value.to_owned()),
            _ => {
                return Err(OptionsError(
                    "the options of a URI are export, connections, crc and patience_s, and of brps:// \
                     also ca, cert, key and tls_name",
                ));
            }
        }
        Ok(())
    }
}

impl Options {
    fn tls(&mut self) -> Result<&mut TlsOptions, OptionsError> {
        let wrong = OptionsError("ca, cert, key and tls_name are options of brps:// only");
        self.tls.as_mut().ok_or(wrong)
    }
}

/// Returns TLS options whose files have not been set yet.
fn no_files() -> TlsOptions {
    TlsOptions {
        files: TlsFiles {
            ca: PathBuf::new(),
            cert: PathBuf::new(),
            key: PathBuf::new(),
        },
        name: None,
    }
}

fn is_complete(tls: &TlsOptions) -> bool {
    let files = [&tls.files.ca, &tls.files.cert, &tls.files.key];
    files.iter().all(|path| !path.as_os_str().is_empty())
}

fn unix(path: &str) -> Result<Address, OptionsError> {
    let path = decoded(path)?;
    if !path.starts_with('/') || path.contains('\0') {
        return Err(OptionsError(
            "the path of a socket must begin with / and contain no NUL",
        ));
    }
    Ok(Address::Unix(PathBuf::from(path)))
}

/// Parses an address of the kind `kind`, followed by the name of an export.
fn inet(kind: &str, place: &str) -> Result<Options, OptionsError> {
    let (address, export) = place.split_once('/').unwrap_or((place, ""));
    let address: Result<Address, String> = format!("{kind}:{address}").parse();
    let address = address.map_err(|_| {
        OptionsError(
            "a URI needs ADDRESS:PORT with a numeric address or localhost; names are not resolved",
        )
    })?;
    Ok(Options {
        export: decoded(export)?,
        ..Options::new(address)
    })
}

fn number(text: &str) -> Result<u32, OptionsError> {
    let wrong = OptionsError("connections and patience_s must be whole numbers");
    text.parse().map_err(|_| wrong)
}

/// Decodes the percent escapes of a text.
fn decoded(text: &str) -> Result<String, OptionsError> {
    let wrong = OptionsError("%XX stands for a byte of UTF-8");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let (Some(high), Some(low)) = (digit(rest.next()), digit(rest.next())) else {
            return Err(wrong);
        };
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_and_every_option() {
        let options = Options::from_uri("brp+unix:///run/a%20b.sock?export=vol&connections=4");
        let options = options.unwrap();
        assert_eq!(
            options.addresses,
            [Address::Unix(PathBuf::from("/run/a b.sock"))]
        );
        assert_eq!((options.export.as_str(), options.paths), ("vol", 4));
        let options = Options::from_uri("brp://localhost:10820/v%C3%B6l?crc=1&patience_s=5");
        let options = options.unwrap();
        assert_eq!(
            options.addresses,
            [Address::Tcp("127.0.0.1:10820".parse().unwrap())]
        );
        assert_eq!(options.export, "v\u{f6}l");
        assert!(options.crc && options.patience == Duration::from_secs(5));
        let options = Options::from_uri("brp+rdma://192.0.2.1:10820/vol?connections=2").unwrap();
        assert_eq!(
            options.addresses,
            [Address::Rdma("192.0.2.1:10820".parse().unwrap())]
        );
        assert_eq!((options.export.as_str(), options.paths), ("vol", 2));
        let impatient = Options::from_uri("brp://[::1]:7/vol?patience_s=0").unwrap_err();
        assert!(impatient.to_string().contains("longer than 0"));
        // A URI without the name of an export selects the target's default export.
        let options = Options::from_uri("brp://[::1]:7").unwrap();
        assert_eq!(options.export, "");
    }

    #[test]
    fn tls_names_its_files() {
        let uri = "brps://192.0.2.7:1/vol?ca=/c/ca.pem&cert=c%20d.pem&key=k&tls_name=box.example";
        let options = Options::from_uri(uri).unwrap();
        let tls = TlsOptions {
            files: TlsFiles {
                ca: "/c/ca.pem".into(),
                cert: "c d.pem".into(),
                key: "k".into(),
            },
            name: Some("box.example".to_owned()),
        };
        assert_eq!(options.tls, Some(tls));
        assert_eq!(options.export, "vol");
        let plain = Options::from_uri("brp://192.0.2.7:1/vol").unwrap();
        assert_eq!(plain.tls, None);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for uri in [
            "",
            "nbd://localhost:1/vol",
            "brp://localhost/vol",
            "brp://example.org:1/vol",
            "brp+unix://relative.sock",
            "brp+unix://",
            "brp+unix:///s%00",
            "brp+unix:///s%f",
            "brp+unix:///s%ff",
            "brp+unix:///s?exports=vol",
            "brp+unix:///s?export=a&export=b",
            "brp://localhost:1/a?export=b",
            "brp+unix:///s?connections=0",
            "brp+unix:///s?connections=17",
            "brp+unix:///s?connections=-1",
            "brp+unix:///s?crc=yes",
            "brp+unix:///s?export=a%00",
            "brps://localhost:1/vol",
            "brps://localhost:1/vol?ca=a&cert=b",
            "brp://localhost:1/vol?ca=a&cert=b&key=c",
            "brps+unix:///s?ca=a&cert=b&key=c",
            "brp+rdma://192.0.2.1/vol",
            "brp+rdma://example.org:1/vol",
            "brp+rdma://192.0.2.1:1/vol?ca=a&cert=b&key=c",
        ] {
            assert!(Options::from_uri(uri).is_err(), "{uri}");
        }
    }
}
