//! TLS 1.3 over TCP with certificates on both ends: good clients, every kind of bad client, and
//! invalid files. `openssl` creates the certificates for each run.

use crate::common;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Raw, SIZE};
use crate::common_tls::Authority;
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::media::remote::{RemoteConfig, RemoteDevice};
use bimetal_block::media::tls::TlsConfig;
use bimetal_block::{Device, Flags, IoError, Request};
use bimetal_client::{Error, Options, Session, Status, TlsOptions, list};
use bimetal_export::{
    ExportConfig, Limits, Protocol, Rights, Rule, Server, StartError, TlsFiles, Who,
};
use bimetal_rt::net::{Address, Stream};
use bimetal_rt::{Rt, UringOptions};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

fn real_rt() -> Rt {
    Rt::real_time(UringOptions::default()).expect("a ring")
}

fn tls(files: TlsFiles) -> Option<TlsOptions> {
    Some(TlsOptions { files, name: None })
}

/// Returns the configuration of an export `vol`: the client `box` can write, the client `reader`
/// can read, and the export is hidden from other clients.
fn config(protocol: Protocol, server: TlsFiles) -> ExportConfig {
    let rule = |name: &str, rights| Rule {
        who: Who::Name(name.to_owned()),
        rights,
    };
    ExportConfig {
        protocol,
        tls: Some(server),
        clients: Some(vec![
            rule("box", Rights::ReadWrite),
            rule("reader", Rights::ReadOnly),
        ]),
        ..ExportConfig::new("vol", "dev", "tcp:127.0.0.1:0".parse().unwrap())
    }
}

/// Numbers of connection threads to test. With 0, the server's own thread carries the connections.
const CONNECTION_THREADS: [u32; 2] = [0, 2];

async fn start(rt: &Rt, config: ExportConfig) -> Result<(Server, Address), StartError> {
    start_on(rt, config, 0).await
}

async fn start_on(
    rt: &Rt,
    config: ExportConfig,
    connection_threads: u32,
) -> Result<(Server, Address), StartError> {
    let device: Rc<dyn Device> = Rc::new(MemoryDevice::new(rt, SIZE));
    let exports = vec![(config, device)];
    let server = Server::start_within(
        rt,
        exports,
        Limits {
            connection_threads,
            ..Limits::default()
        },
    )
    .await?;
    let address = server.addresses().remove(0);
    Ok((server, address))
}

fn options(address: &Address, files: TlsFiles) -> Options {
    Options {
        export: "vol".to_owned(),
        tls: tls(files),
        patience: Duration::from_secs(20),
        ..Options::new(address.clone())
    }
}

#[test]
fn brp_by_the_names_of_certificates() {
    CONNECTION_THREADS.into_iter().for_each(serve_brp);
}

fn serve_brp(connection_threads: u32) {
    let authority = Authority::new("brp");
    let server_files = authority.files("server", "IP:127.0.0.1");
    let (writer, reader) = (
        authority.files("writer", "DNS:box"),
        // If a certificate has no alternative names, its common name is used.
        authority.files("reader", ""),
    );
    let stranger = authority.files("stranger", "DNS:stranger");
    let rt = real_rt();
    rt.block_on(async {
        let (server, address) =
            start_on(&rt, config(Protocol::Brp, server_files), connection_threads)
                .await
                .unwrap();
        let session = Session::connect(&rt, options(&address, writer.clone())).await;
        let session = session.unwrap();
        // The data is longer than any buffer between the ends, and is split into many TLS records.
        let data: Vec<u8> = (0..900_000_u32).map(|i| (i % 239) as u8).collect();
        session.write(4321, rt.pool().copy_of(&data)).await.unwrap();
        let reading = Session::connect(&rt, options(&address, reader.clone())).await;
        let reading = reading.unwrap();
        let read = reading.read(4321, data.len() as u32).await.unwrap();
        assert!(read.to_vec() == data, "what was written");
        let refused = reading.write(0, rt.pool().copy_of(&[1; 4096])).await;
        assert!(matches!(refused, Err(Error::Target(Status::ReadOnly))));
        // Many writes at a time, in both directions.
        let calls = (0..64).map(|i| session.write(i * 4096, rt.pool().copy_of(&[i as u8; 4096])));
        for written in futures_util::future::join_all(calls).await {
            written.unwrap();
        }
        let calls = (0..64).map(|i| reading.read(i * 4096, 4096));
        for (i, read) in futures_util::future::join_all(calls)
            .await
            .into_iter()
            .enumerate()
        {
            assert_eq!(read.unwrap().to_vec(), [i as u8; 4096]);
        }
        for (files, names) in [(writer, 1), (reader, 1)] {
            let listed = list(&rt, &address, tls(files).as_ref()).await.unwrap();
            assert_eq!(listed.len(), names);
        }
        // The certificate is valid, but its name has no rights to the export.
        assert!(list(&rt, &address, tls(stranger).as_ref()).await.is_err());
        session.close().await;
        reading.close().await;
        server.stop().await;
    });
    assert_eq!(rt.live_tasks(), 0);
}

/// Connects as a client that does not check its own files before it connects. Returns the bytes
/// that the server sends.
fn careless(ca: &TlsFiles, own: Option<&TlsFiles>, address: &Address) -> std::io::Result<Vec<u8>> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(&ca.ca).unwrap())
        .unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let chain = vec![CertificateDer::from_pem_file(&own.cert).unwrap()];
            let key = PrivateKeyDer::from_pem_file(&own.key).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    let Address::Tcp(address) = address else {
        panic!("TLS is over TCP");
    };
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(address)?);
    // A target answers a HELLO, which has 40 bytes after its head. These 16 bytes are not a valid
    // HELLO, so no answer to them is expected.
    stream.write_all(&[0; 16])?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

/// Runs a blocking client in another thread while the executor runs.
async fn beside<T: Send + 'static>(rt: &Rt, client: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(client);
    while !thread.is_finished() {
        rt.sleep(Duration::from_millis(1)).await;
    }
    thread.join().unwrap()
}

#[test]
fn bad_clients_are_refused_and_good_ones_served_on() {
    CONNECTION_THREADS.into_iter().for_each(refuse_bad_clients);
}

fn refuse_bad_clients(connection_threads: u32) {
    let (authority, other) = (Authority::new("bad"), Authority::new("other"));
    let server_files = authority.files("server", "IP:127.0.0.1");
    let good = authority.files("writer", "DNS:box");
    let expired = authority.expired("expired", "DNS:box");
    let foreign = TlsFiles {
        ca: good.ca.clone(),
        ..other.files("foreign", "DNS:box")
    };
    // A certificate that the right authority has issued, but not for use by clients.
    let not_a_client = authority.files_for("notclient", "DNS:box", "serverAuth");
    let rt = real_rt();
    rt.block_on(async {
        let (server, address) =
            start_on(&rt, config(Protocol::Brp, server_files), connection_threads)
                .await
                .unwrap();
        for (own, alert) in [
            (None, "CertificateRequired"),
            (Some(foreign.clone()), "UnknownCA"),
            (Some(expired.clone()), "CertificateExpired"),
            (Some(not_a_client), ""),
        ] {
            let (ca, address) = (good.clone(), address.clone());
            let answer = beside(&rt, move || careless(&ca, own.as_ref(), &address)).await;
            let error = answer.unwrap_err().to_string();
            assert!(error.contains("alert") && error.contains(alert), "{error}");
        }
        // Our own client reports the reason as text.
        let error = Session::connect(&rt, options(&address, foreign))
            .await
            .err()
            .unwrap();
        assert!(error.to_string().contains("UnknownCA"), "{error}");
        let error = Session::connect(&rt, options(&address, expired))
            .await
            .err()
            .unwrap();
        assert!(error.to_string().contains("expired"), "{error}");
        // The server disconnects a client without TLS at an address with TLS, whatever the client
        // sends.
        let plain = Options::new(address.clone());
        assert!(Session::connect(&rt, plain).await.is_err());
        for words in [
            &b"GET / HTTP/1.0\r\n\r\n"[..],
            &[0; 300],
            &[0x16, 3, 1, 0xff, 0xff],
        ] {
            let stream = Stream::connect(&rt, &address).await.unwrap();
            let mut raw = Raw::over(&rt, stream);
            raw.send(words).await;
            if words.len() > 5 {
                // The server can send an alert before it closes the connection, so read until the
                // connection ends.
                raw.take(usize::MAX).await;
            }
        }
        let session = Session::connect(&rt, options(&address, good))
            .await
            .unwrap();
        session.flush().await.unwrap();
        session.close().await;
        assert!(common::statistic(&server, "connections_refused") >= 6);
        // All refused clients cause a single report, so that an attacker cannot flood the operator.
        let told = rt.notices().take(rt.now());
        let refused = told.iter().filter(|notice| notice.kind == "client-refused");
        let refused: Vec<String> = refused.map(ToString::to_string).collect();
        let [line] = &refused[..] else {
            panic!("{refused:?}");
        };
        assert!(
            line.contains("refused: TLS") && line.contains("times more"),
            "{line}"
        );
        server.stop().await;
    });
    assert_eq!(rt.live_tasks(), 0);
}

#[test]
fn a_client_believes_only_the_server_that_it_means() {
    let (authority, other) = (Authority::new("mine"), Authority::new("theirs"));
    let good = authority.files("writer", "DNS:box");
    let rt = real_rt();
    rt.block_on(async {
        for (server_files, words) in [
            (other.files("server", "IP:127.0.0.1"), "UnknownIssuer"),
            (
                authority.files("vault", "DNS:vault.example"),
                "not valid for name",
            ),
        ] {
            // The server trusts our authority in both cases.
            let server_files = TlsFiles {
                ca: good.ca.clone(),
                ..server_files
            };
            let (server, address) = start(&rt, config(Protocol::Brp, server_files))
                .await
                .unwrap();
            let error = Session::connect(&rt, options(&address, good.clone())).await;
            let error = error.err().unwrap().to_string();
            assert!(error.contains(words), "{error}");
            if words == "not valid for name" {
                let mut named = options(&address, good.clone());
                named.tls.as_mut().unwrap().name = Some("vault.example".to_owned());
                Session::connect(&rt, named).await.unwrap().close().await;
            }
            server.stop().await;
        }
    });
}

#[test]
fn what_is_wrong_with_files_is_said_in_one_line() {
    let (authority, other) = (Authority::new("files"), Authority::new("files2"));
    let good = authority.files("server", "IP:127.0.0.1");
    let foreign = other.files("foreign", "IP:127.0.0.1");
    let with = |ca: Option<&str>, cert: Option<&str>, key: Option<&str>| {
        let or = |name: Option<&str>, path: &std::path::Path| match name {
            Some(name) => authority.path(name),
            None => path.to_owned(),
        };
        TlsFiles {
            ca: or(ca, &good.ca),
            cert: or(cert, &good.cert),
            key: or(key, &good.key),
        }
    };
    std::fs::write(authority.path("empty"), "").unwrap();
    let torn = std::fs::read_to_string(&good.cert).unwrap();
    std::fs::write(authority.path("torn"), &torn[..torn.len() / 2]).unwrap();
    std::fs::write(authority.path("huge"), vec![b'x'; (1 << 20) + 1]).unwrap();
    let expired = authority.expired("old", "IP:127.0.0.1");
    let for_clients = authority.files_for("forclients", "IP:127.0.0.1", "clientAuth");
    let rt = real_rt();
    rt.block_on(async {
        for (files, words) in [
            (
                with(Some("none"), None, None),
                &["none", "No such file"][..],
            ),
            (with(None, Some("none"), None), &["none", "No such file"]),
            (with(None, None, Some("none")), &["none", "No such file"]),
            (
                with(Some("empty"), None, None),
                &["empty", "no certificate"],
            ),
            (
                with(None, Some("empty"), None),
                &["empty", "no certificate"],
            ),
            (
                with(None, None, Some("empty")),
                &["empty", "no private key"],
            ),
            (with(None, Some("torn"), None), &["torn", "end marker"]),
            (with(None, None, Some("huge")), &["huge", "longer than"]),
            (
                TlsFiles {
                    key: foreign.key.clone(),
                    ..good.clone()
                },
                &["foreign.key", "not the key of", "server.pem"],
            ),
            (expired, &["old.pem", "expired", "days ago"]),
            (for_clients, &["forclients.pem", "not valid for a server"]),
        ] {
            let error = start(&rt, config(Protocol::Nbd, files))
                .await
                .err()
                .unwrap();
            let line = error.to_string();
            for word in words {
                assert!(line.contains(word), "{word:?} is not in {line:?}");
            }
            assert!(
                line.starts_with("export vol: tls: ") && !line.contains('\n'),
                "{line}"
            );
        }
    });
}

#[test]
fn beyond_the_loopback_address_nothing_listens_without_tls() {
    let rt = real_rt();
    rt.block_on(async {
        for protocol in [Protocol::Nbd, Protocol::Brp] {
            for at in ["tcp:0.0.0.0:0", "tcp:[::]:0", "tcp:192.0.2.1:0"] {
                let config = ExportConfig {
                    protocol,
                    ..ExportConfig::new("vol", "dev", at.parse().unwrap())
                };
                let error = start(&rt, config).await.err().unwrap();
                assert!(matches!(error, StartError::Open { .. }));
                assert!(error.to_string().contains("requires TLS"), "{error}");
            }
        }
    });
}

const STARTTLS: u32 = 5;
const ERR_TLS_REQD: u32 = (1 << 31) + 5;

async fn nbd(rt: &Rt, address: &Address) -> Raw {
    let mut raw = Raw::over(rt, Stream::connect(rt, address).await.unwrap());
    assert_eq!(raw.take(18).await, b"NBDMAGICIHAVEOPT\0\x03");
    raw.send(&[0, 0, 0, 3]).await;
    raw
}

#[test]
fn nbd_says_nothing_before_tls_and_takes_nothing_from_before_it() {
    CONNECTION_THREADS.into_iter().for_each(begin_nbd_with_tls);
}

fn begin_nbd_with_tls(connection_threads: u32) {
    let authority = Authority::new("nbd");
    let server_files = authority.files("server", "IP:127.0.0.1");
    let rt = real_rt();
    rt.block_on(async {
        let (server, address) =
            start_on(&rt, config(Protocol::Nbd, server_files), connection_threads)
                .await
                .unwrap();
        let mut raw = nbd(&rt, &address).await;
        for option in [3, 6, 7, 8] {
            raw.option(option, &[]).await;
            let (kind, _) = raw.reply().await;
            assert_eq!(kind, ERR_TLS_REQD);
        }
        raw.option(1, b"vol").await;
        assert!(raw.at_end().await);
        // An option that an attacker has injected after STARTTLS ends the connection.
        let mut raw = nbd(&rt, &address).await;
        let starttls = b"IHAVEOPT\0\0\0\x05\0\0\0\0";
        raw.send(&[&starttls[..], b"IHAVEOPT\0\0\0\x08\0\0\0\0"].concat())
            .await;
        assert_eq!(raw.reply().await, (1, Vec::new()));
        assert!(raw.at_end().await);
        // The client requests STARTTLS, but then continues without TLS.
        let mut raw = nbd(&rt, &address).await;
        raw.option(STARTTLS, &[]).await;
        assert_eq!(raw.reply().await, (1, Vec::new()));
        raw.option(8, &[]).await;
        let answer = raw.take(usize::MAX).await;
        assert!(answer.len() < 20, "at most an alert: {answer:?}");
        server.stop().await;
    });
    assert_eq!(rt.live_tasks(), 0);
}

#[test]
fn nbd_is_served_inside_of_tls_by_the_name_of_the_client() {
    CONNECTION_THREADS.into_iter().for_each(serve_nbd);
}

fn serve_nbd(connection_threads: u32) {
    let authority = Authority::new("starttls");
    let server_files = authority.files("server", "IP:127.0.0.1");
    let rt = real_rt();
    rt.block_on(async {
        let (server, address) =
            start_on(&rt, config(Protocol::Nbd, server_files), connection_threads)
                .await
                .unwrap();
        for (name, error) in [("box", 0), ("reader", 1)] {
            let files = authority.files(name, &format!("DNS:{name}"));
            let client = bimetal_tls::ClientTls::load(&files, "127.0.0.1").unwrap();
            let below = Stream::connect(&rt, &address).await.unwrap();
            let (result, _) = below.recv_exact(rt.pool().alloc_now(18), 0).await;
            result.unwrap();
            let starttls = b"\0\0\0\x03IHAVEOPT\0\0\0\x05\0\0\0\0";
            below
                .send(rt.pool().copy_of(starttls).into())
                .await
                .unwrap();
            let (result, _) = below.recv_exact(rt.pool().alloc_now(20), 0).await;
            result.unwrap();
            let mut raw = Raw::over(&rt, client.connect(&rt, below).await.unwrap());
            raw.option(1, b"vol").await;
            raw.take(10).await;
            raw.write(0, 1, 8192, &[9; 70_000]).await;
            raw.expect(1, error).await;
            assert_eq!(raw.read(8192, 70_000).await, [9; 70_000]);
            raw.request(0, common::DISC, 3, 0, 0).await;
            assert!(raw.at_end().await);
        }
        server.stop().await;
    });
    assert_eq!(rt.live_tasks(), 0);
}

/// Opens a remote medium over NBD with these TLS files. Returns the reason if this fails.
async fn medium(
    rt: &Rt,
    address: &Address,
    files: &TlsFiles,
    name: Option<&str>,
) -> Result<RemoteDevice, String> {
    let config = RemoteConfig {
        export: "vol".to_owned(),
        connections: 4,
        tls: Some(TlsConfig {
            ca: files.ca.clone(),
            cert: files.cert.clone(),
            key: files.key.clone(),
            name: name.map(str::to_owned),
        }),
        ..RemoteConfig::new(address.clone())
    };
    let opened = RemoteDevice::open(rt, &config).await;
    opened.map_err(|error| error.to_string())
}

#[test]
fn an_nbd_medium_speaks_tls_with_the_server_that_it_means() {
    // Long enough for many TLS records.
    const LEN: usize = 640 << 10;
    let (authority, other) = (Authority::new("medium"), Authority::new("medium-other"));
    let server_files = authority.files("server", "IP:127.0.0.1");
    let (writer, reader) = (
        authority.files("writer", "DNS:box"),
        authority.files("reader", "DNS:reader"),
    );
    let rt = real_rt();
    rt.block_on(async {
        let (server, address) = start(&rt, config(Protocol::Nbd, server_files))
            .await
            .unwrap();
        let device = medium(&rt, &address, &writer, None).await.unwrap();
        let data = rt.pool().copy_of(&[7; LEN]);
        let write = Request::write(4096, data, Flags::NONE);
        device.submit(write).await.unwrap();
        let reading = medium(&rt, &address, &reader, None).await.unwrap();
        assert!(!reading.geometry().writable);
        let read = reading.submit(Request::read(4096, LEN as u64)).await;
        assert!(read.unwrap().into_data().to_vec() == [7; LEN]);
        let write = Request::write(0, rt.pool().copy_of(&[1; 4096]), Flags::NONE);
        assert_eq!(reading.submit(write).await.err(), Some(IoError::ReadOnly));
        for device in [device, reading] {
            device.close().await.unwrap();
        }
        // Two connections must be refused: one that expects a server name other than the name in
        // the certificate, and one with a client certificate of another authority.
        let stranger = other.files("stranger", "DNS:box");
        for (files, name) in [(&writer, Some("vault.example")), (&stranger, None)] {
            let refused = medium(&rt, &address, files, name).await.err().unwrap();
            assert!(refused.contains("certificate"), "{refused}");
        }
        server.stop().await;
    });
    assert_eq!(rt.live_tasks(), 0);
}

#[test]
fn an_nbd_medium_goes_no_further_with_a_server_without_tls() {
    let authority = Authority::new("plain");
    let files = authority.files("client", "DNS:box");
    let rt = real_rt();
    rt.block_on(async {
        let plain = ExportConfig::new("vol", "dev", "tcp:127.0.0.1:0".parse().unwrap());
        let (server, address) = start(&rt, plain).await.unwrap();
        let refused = medium(&rt, &address, &files, None).await.err().unwrap();
        assert!(
            refused.contains("refused the connection: option 5"),
            "{refused}"
        );
        server.stop().await;
    });
    assert_eq!(rt.live_tasks(), 0);
}
