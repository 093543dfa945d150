//! The `[export.NAME]` sections of a configuration.

use std::collections::BTreeMap;

pub use bimetal_block::graph::Persistence;
use bimetal_block::graph::{ConfigError, Document, Section};
use bimetal_proto::brp::wire::NAME_BYTES_MAX;
use bimetal_rt::net::Address;
use bimetal_tls::TlsFiles;
use serde::Deserialize;

use crate::access::{Rights, Rule, Who};

/// Default of the maximum number of simultaneous connections to an export.
const CONNECTIONS_MAX_DEFAULT: u32 = 64;

/// Error message for an RDMA address with a protocol other than BRP.
pub(crate) const ONLY_BRP: &str = "only BRP is possible over RDMA";

/// Protocol that an export is served by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// The Network Block Device protocol, see `docs/nbd.md`.
    Nbd,
    /// BRP, see `docs/brp.md`.
    Brp,
}

impl Protocol {
    /// Returns the name in configurations and statistics.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Nbd => "nbd",
            Protocol::Brp => "brp",
        }
    }

    /// Returns the maximum length of an export's name or description in bytes (NBD, section
    /// "Conventions"; BRP, section "Limits").
    fn string_bytes_max(self) -> usize {
        match self {
            Protocol::Nbd => 4096,
            Protocol::Brp => NAME_BYTES_MAX,
        }
    }
}

/// Configuration of an export: a device that is served under a name at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportConfig {
    /// The name by which clients request the export: the NAME of the section.
    pub name: String,
    /// The name of the device in the configuration.
    pub device: String,
    /// The protocol that the export is served by.
    pub protocol: Protocol,
    /// The address at which the server listens. Several exports can share an address. A client then
    /// selects an export by its name.
    pub listen: Address,
    /// Description of the export that people see in a list of exports; can be empty.
    pub description: String,
    /// Whether requests that change the device are refused even if the device is writable.
    pub read_only: bool,
    /// Access rules. `None` admits only the server's own user and root on a UNIX socket, and every
    /// client at any other address.
    pub clients: Option<Vec<Rule>>,
    /// TLS files. If they are given, the server accepts only TLS at the address.
    pub tls: Option<TlsFiles>,
    /// Permits an RDMA address that other machines can reach. Every client on the fabric can then
    /// eavesdrop and connect.
    pub unprotected: bool,
    /// Maximum number of simultaneous connections. A further connection is closed when its client
    /// requests the export.
    pub connections_max: u32,
    /// Whether a client that requests no export by name gets this export. If no export at an
    /// address has this mark, the first export by name is the default.
    pub default: bool,
    /// Which data on the device survive the death of the server's process. This is not a key of the
    /// section; the caller, which knows the device, sets the value.
    pub persistence: Persistence,
}

/// Keys of a section, as written in the configuration.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    device: String,
    protocol: Protocol,
    listen: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    read_only: bool,
    clients: Option<Vec<Rule>>,
    #[serde(default)]
    tls: Tls,
    #[serde(default)]
    unprotected: bool,
    #[serde(default = "connections_max_default")]
    connections_max: u32,
    #[serde(default)]
    default: bool,
}

/// Value of the key `tls`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Tls {
    #[default]
    Off,
    Required,
}

fn connections_max_default() -> u32 {
    CONNECTIONS_MAX_DEFAULT
}

impl ExportConfig {
    /// Creates an export with the default value of every optional key.
    pub fn new(name: &str, device: &str, listen: Address) -> ExportConfig {
        ExportConfig {
            name: name.to_owned(),
            device: device.to_owned(),
            protocol: Protocol::Nbd,
            listen,
            description: String::new(),
            read_only: false,
            clients: None,
            tls: None,
            unprotected: false,
            connections_max: CONNECTIONS_MAX_DEFAULT,
            default: false,
            persistence: Persistence::Durable,
        }
    }

    /// Whether the rules admit clients other than the server's own user and root. The server's own
    /// user and root can connect regardless of the mode of the socket file.
    pub(crate) fn is_for_others(&self) -> bool {
        let rules = self.clients.as_deref().unwrap_or_default();
        rules.iter().any(|rule| rule.rights != Rights::Hidden)
    }

    /// Reads the exports of a document, sorted by name. The caller, which knows all devices, must
    /// check that the device of each export exists.
    ///
    /// # Errors
    /// The first mistake, with its position in the file.
    pub fn read(document: &Document<'_>) -> Result<Vec<ExportConfig>, ConfigError> {
        let mut exports: Vec<ExportConfig> = Vec::new();
        let mut defaults: BTreeMap<String, String> = BTreeMap::new();
        let mut spoken: BTreeMap<String, (Protocol, bool)> = BTreeMap::new();
        let files = tls_files(document)?;
        for (name, section) in document.named("export") {
            let export = read_one(name, section, files.as_ref())?;
            let own = (export.protocol, export.tls.is_some());
            let first = *spoken.entry(export.listen.to_string()).or_insert(own);
            if first.0 != own.0 {
                let message = format!(
                    "another export at {} has a different protocol",
                    export.listen
                );
                return Err(section.error(message));
            }
            if first.1 != own.1 {
                let message = format!("`tls` is not the same for all exports at {}", export.listen);
                return Err(section.error(message));
            }
            if export.default
                && let Some(other) = defaults.insert(export.listen.to_string(), name.to_owned())
            {
                let message = format!(
                    "`{name}` and `{other}` are both the default at {}",
                    export.listen
                );
                return Err(section.error(message));
            }
            exports.push(export);
        }
        Ok(exports)
    }
}

/// Reads the section `[tls]`.
fn tls_files(document: &Document<'_>) -> Result<Option<TlsFiles>, ConfigError> {
    let Some(section) = document.single("tls") else {
        return Ok(None);
    };
    let files: TlsFiles = section.clone().read()?;
    Ok(Some(files.resolved(|path| section.resolve(path))))
}

fn read_one(
    name: &str,
    section: &Section<'_>,
    files: Option<&TlsFiles>,
) -> Result<ExportConfig, ConfigError> {
    let keys: Keys = section.clone().read()?;
    let longest = keys.protocol.string_bytes_max();
    let is_string = |text: &str| text.len() <= longest && !text.contains('\0');
    if name.is_empty() || !is_string(name) {
        let message = format!("an export has a name of 1 to {longest} bytes without NUL");
        return Err(section.error(message));
    }
    if !is_string(&keys.description) {
        let message = format!("`description` is longer than {longest} bytes or contains NUL");
        return Err(section.error(message));
    }
    if keys.connections_max == 0 {
        return Err(section.error("`connections_max` must be at least 1"));
    }
    let listen = match keys
        .listen
        .parse()
        .map_err(|why| section.error(format!("`listen`: {why}")))?
    {
        Address::Unix(path) => Address::Unix(section.resolve(&path)),
        Address::Rdma(_) if keys.protocol != Protocol::Brp => {
            return Err(section.error_at("listen", ONLY_BRP));
        }
        inet @ (Address::Tcp(_) | Address::Rdma(_)) => inet,
    };
    if keys.unprotected && !matches!(listen, Address::Rdma(_)) {
        return Err(section.error_at(
            "unprotected",
            "`unprotected` is possible with RDMA only; use TLS over TCP",
        ));
    }
    let tls = match (keys.tls, &listen) {
        (Tls::Off, _) => None,
        (Tls::Required, Address::Unix(_)) => {
            return Err(section.error_at(
                "tls",
                "TLS is possible over TCP only; a UNIX socket is local to this machine",
            ));
        }
        (Tls::Required, Address::Rdma(_)) => {
            return Err(section.error_at("tls", "TLS is possible over TCP only, not over RDMA"));
        }
        (Tls::Required, Address::Tcp(_)) => {
            let missing = "there is no section [tls] with `ca`, `cert` and `key`";
            Some(
                files
                    .ok_or_else(|| section.error_at("tls", missing))?
                    .clone(),
            )
        }
    };
    if is_open(&listen, tls.as_ref(), keys.unprotected) {
        let words = match listen {
            Address::Rdma(_) => OPEN_RDMA,
            Address::Unix(_) | Address::Tcp(_) => OPEN,
        };
        return Err(section.error_at("listen", words));
    }
    if let Some(mistake) = mistake_in(keys.clients.as_deref(), &listen, tls.is_some()) {
        return Err(section.error_at("clients", mistake));
    }
    Ok(ExportConfig {
        name: name.to_owned(),
        device: keys.device,
        protocol: keys.protocol,
        listen,
        description: keys.description,
        read_only: keys.read_only,
        clients: keys.clients,
        tls,
        unprotected: keys.unprotected,
        connections_max: keys.connections_max,
        default: keys.default,
        persistence: Persistence::Durable,
    })
}

/// Error message for a TCP address that other machines can reach without protection (see
/// [`is_open`]).
pub(crate) const OPEN: &str =
    "an address other than loopback requires TLS: set `tls = \"required\"`";

/// Error message for an RDMA address that other machines can reach, if the configuration does not
/// permit this (see [`is_open`]).
pub(crate) const OPEN_RDMA: &str = "RDMA has no TLS: on an address other than loopback, every \
     machine on the fabric could read and change all data; set `unprotected = true` to allow that";

/// Whether a client from another machine could eavesdrop at the address or connect to it without
/// protection, although the configuration does not explicitly permit this.
pub(crate) fn is_open(listen: &Address, tls: Option<&TlsFiles>, unprotected: bool) -> bool {
    match listen {
        Address::Unix(_) => false,
        Address::Tcp(address) => !address.ip().is_loopback() && tls.is_none(),
        Address::Rdma(address) => !address.ip().is_loopback() && !unprotected,
    }
}

/// Returns an error message if the rules of an address contain a mistake. A rule that can never
/// apply to a client of the address is a mistake.
fn mistake_in(rules: Option<&[Rule]>, listen: &Address, tls: bool) -> Option<&'static str> {
    let rules = rules?;
    let is_unix = matches!(listen, Address::Unix(_));
    let mut mistakes = rules.iter().filter_map(|rule| match &rule.who {
        Who::User(_) | Who::Group(_) if !is_unix => {
            Some("`uid` and `gid` are known only for clients on a UNIX socket")
        }
        Who::Name(_) if !tls => Some("`name` is known only for clients with a certificate"),
        _ => None,
    });
    let nobody = || {
        rules
            .is_empty()
            .then_some("without a rule, no client is served")
    };
    mistakes.next().or_else(nobody)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(text: &str) -> Result<Vec<ExportConfig>, String> {
        let document =
            Document::parse(Path::new("/etc/c.toml"), text).map_err(|e| e.to_string())?;
        ExportConfig::read(&document).map_err(|e| e.to_string())
    }

    #[test]
    fn exports_are_read_with_their_defaults() {
        let exports = read(
            "[export.vol]\ndevice = \"a\"\nprotocol = \"nbd\"\nlisten = \"unix:vol.sock\"\n\
             [export.aux]\ndevice = \"b\"\nprotocol = \"nbd\"\nlisten = \"tcp:127.0.0.1:10809\"\n\
             read_only = true\nconnections_max = 3\ndefault = true\ndescription = \"spare\"\n",
        )
        .unwrap();
        assert_eq!(exports.len(), 2);
        let (aux, vol) = (&exports[0], &exports[1]);
        assert_eq!(vol.listen, Address::Unix("/etc/vol.sock".into()));
        assert!(!vol.read_only && !vol.default && vol.connections_max == 64);
        assert_eq!(aux.listen, Address::Tcp("127.0.0.1:10809".parse().unwrap()));
        assert!(aux.read_only && aux.default && aux.connections_max == 3);
    }

    #[test]
    fn tls_takes_its_files_from_their_section() {
        let away = "device = \"a\"\nprotocol = \"brp\"\nlisten = \"tcp:192.0.2.1:9\"\n";
        let tls = format!(
            "[tls]\nca = \"ca.pem\"\ncert = \"/x/c.pem\"\nkey = \"c.key\"\n[export.vol]\n{away}\
             tls = \"required\"\nclients = [{{ name = \"box\", rights = \"read-only\" }}]\n"
        );
        let files = TlsFiles {
            ca: "/etc/ca.pem".into(),
            cert: "/x/c.pem".into(),
            key: "/etc/c.key".into(),
        };
        let exports = read(&tls).unwrap();
        assert_eq!(exports[0].tls, Some(files));
        let other = format!(
            "{tls}[export.w]\n{}",
            away.replace("192.0.2.1", "127.0.0.1")
        );
        assert_eq!(read(&other).unwrap()[1].tls, None);
        let mixed = format!("{tls}[export.w]\n{away}").replace("192.0.2.1", "127.0.0.1");
        assert!(read(&mixed).unwrap_err().contains("not the same"));
    }

    #[test]
    fn rdma_goes_beyond_the_machine_where_that_is_said() {
        let rdma = |address: &str, more: &str| {
            let keys =
                format!("device = \"a\"\nprotocol = \"brp\"\nlisten = \"rdma:{address}:9\"\n");
            read(&format!("[export.vol]\n{keys}{more}")).map(|exports| exports[0].clone())
        };
        let near = rdma("127.0.0.1", "").unwrap();
        assert_eq!(near.listen, Address::Rdma("127.0.0.1:9".parse().unwrap()));
        assert!(!near.unprotected);
        assert!(
            rdma("192.0.2.1", "unprotected = true\n")
                .unwrap()
                .unprotected
        );
        assert!(rdma("192.0.2.1", "unprotected = false\n").is_err());
        // Clients at an RDMA address have no user ID and no certificate.
        let rules = "clients = [{ uid = 1, rights = \"read-only\" }]\n";
        assert!(
            rdma("127.0.0.1", rules)
                .unwrap_err()
                .contains("UNIX socket")
        );
    }

    #[test]
    fn rules_are_read_in_their_order() {
        let text = "[export.vol]\ndevice = \"a\"\nprotocol = \"brp\"\nlisten = \"unix:s\"\n\
            clients = [{ uid = 1000, rights = \"read-write\" }, { gid = 6, rights = \"read-only\" }, \
            { rights = \"hidden\" }]\n";
        let rule = |who, rights| Rule { who, rights };
        let rules = vec![
            rule(Who::User(1000), Rights::ReadWrite),
            rule(Who::Group(6), Rights::ReadOnly),
            rule(Who::Everybody, Rights::Hidden),
        ];
        let exports = read(text).unwrap();
        assert_eq!(exports[0].clients, Some(rules));
        assert!(exports[0].is_for_others());
        let hidden = "clients = [{ rights = \"hidden\" }]\n";
        let nobody = format!("{}{hidden}", &text[..text.find("clients").unwrap()]);
        assert!(!read(&nobody).unwrap()[0].is_for_others());
    }

    #[test]
    fn mistakes_are_refused_with_their_place() {
        let good = "device = \"a\"\nprotocol = \"nbd\"\nlisten = \"unix:s\"\n";
        for (body, words) in [
            ("device = \"a\"\nprotocol = \"nbd\"\n", "listen"),
            ("device = \"a\"\nlisten = \"unix:s\"\n", "protocol"),
            (
                "device = \"a\"\nprotocol = \"iscsi\"\nlisten = \"unix:s\"\n",
                "iscsi",
            ),
            (
                "device = \"a\"\nprotocol = \"nbd\"\nlisten = \"vol.sock\"\n",
                "unix:PATH",
            ),
            (
                "device = \"a\"\nprotocol = \"nbd\"\nlisten = \"tcp:example:1\"\n",
                "tcp:",
            ),
            (
                "device = \"a\"\nprotocol = \"brp\"\nlisten = \"tcp:192.0.2.1:9\"\n",
                "loopback",
            ),
            (
                "device = \"a\"\nprotocol = \"nbd\"\nlisten = \"tcp:[::]:9\"\n",
                "loopback",
            ),
            (
                "device = \"a\"\nprotocol = \"nbd\"\nlisten = \"tcp:127.0.0.1:9\"\n\
                 tls = \"required\"\n",
                "[tls]",
            ),
            (&format!("{good}tls = \"required\"\n"), "UNIX"),
            (&format!("{good}tls = \"maybe\"\n"), "required"),
            (
                "device = \"a\"\nprotocol = \"brp\"\nlisten = \"rdma:192.0.2.1:9\"\n",
                "unprotected = true",
            ),
            (
                "device = \"a\"\nprotocol = \"brp\"\nlisten = \"rdma:[::]:9\"\n",
                "RDMA has no TLS",
            ),
            (
                "device = \"a\"\nprotocol = \"nbd\"\nlisten = \"rdma:127.0.0.1:9\"\n",
                "only BRP",
            ),
            (
                "device = \"a\"\nprotocol = \"brp\"\nlisten = \"rdma:127.0.0.1:9\"\n\
                 tls = \"required\"\n",
                "not over RDMA",
            ),
            (
                "device = \"a\"\nprotocol = \"brp\"\nlisten = \"tcp:192.0.2.1:9\"\n\
                 unprotected = true\n",
                "with RDMA only",
            ),
            (&format!("{good}unprotected = true\n"), "with RDMA only"),
            (&format!("{good}connections_max = 0\n"), "at least 1"),
            (&format!("{good}readonly = true\n"), "readonly"),
            (&format!("{good}clients = []\n"), "no client is served"),
            (
                &format!("{good}clients = [{{ uid = 1, gid = 2, rights = \"hidden\" }}]\n"),
                "one of `uid`",
            ),
            (&format!("{good}clients = [{{ uid = 1 }}]\n"), "rights"),
            (
                &format!("{good}clients = [{{ uid = -1, rights = \"hidden\" }}]\n"),
                "u32",
            ),
            (
                &format!("{good}clients = [{{ rights = \"admin\" }}]\n"),
                "read-write",
            ),
            (
                &format!("{good}clients = [{{ name = \"a\", rights = \"hidden\" }}]\n"),
                "certificate",
            ),
            (
                "device = \"a\"\nprotocol = \"nbd\"\nlisten = \"tcp:127.0.0.1:9\"\n\
                 clients = [{ gid = 1, rights = \"read-only\" }]\n",
                "UNIX socket",
            ),
        ] {
            let message = read(&format!("[export.vol]\n{body}")).unwrap_err();
            assert!(
                message.contains(words) && message.starts_with("/etc/c.toml:"),
                "{message}"
            );
        }
        let two = format!("[export.a]\n{good}default = true\n[export.b]\n{good}default = true\n");
        assert!(read(&two).unwrap_err().contains("both the default"));
        let brp = good.replace("nbd", "brp");
        let two = format!("[export.a]\n{good}[export.b]\n{brp}");
        assert!(read(&two).unwrap_err().contains("a different protocol"));
    }
}
