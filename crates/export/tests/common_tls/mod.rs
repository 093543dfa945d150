//! A small certificate authority, created with the commands in `docs/tls.md`.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};
use std::process::Command;

use bimetal_export::TlsFiles;

const CURVE: [&str; 5] = [
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:P-256",
    "-nodes",
];
/// Configuration of `openssl ca`, which is used to issue certificates with given dates.
const CONFIG: &str = "[ca]\ndefault_ca=own\n[own]\ndatabase=index.txt\nserial=serial\nnew_certs_dir=.\n\
    default_md=sha256\npolicy=any\n[any]\ncommonName=supplied\n";

/// A certificate authority in a directory, which is removed when the value is dropped.
pub struct Authority(PathBuf);

impl Authority {
    /// Creates an authority. `name` distinguishes the authorities of one process.
    pub fn new(name: &str) -> Authority {
        let path = std::env::temp_dir().join(format!("bimetal-ca-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a temporary directory");
        let authority = Authority(path);
        let subject = format!("/CN=authority {name}");
        let own = ["-x509", "-days", "3650", "-subj", &subject];
        let files = ["-keyout", "ca.key", "-out", "ca.pem"];
        authority.openssl(&[&["req"], &CURVE[..], &own, &files].concat());
        authority
    }

    /// Returns the path of a file of the authority.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn openssl(&self, args: &[&str]) {
        let mut command = Command::new("openssl");
        let output = command.args(args).current_dir(&self.0).output();
        let output = output.expect("openssl is among the test dependencies");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
    }

    /// Creates a key and a certificate request, and writes the extensions of the certificate to a
    /// file.
    fn ask(&self, name: &str, names: &str, usage: &str) {
        let mut text = "basicConstraints=CA:FALSE\n".to_owned();
        for (key, value) in [("subjectAltName", names), ("extendedKeyUsage", usage)] {
            if !value.is_empty() {
                text += &format!("{key}={value}\n");
            }
        }
        std::fs::write(self.path(&format!("{name}.ext")), text).expect("the directory is ours");
        let (subject, key, request) = (
            format!("/CN={name}"),
            format!("{name}.key"),
            format!("{name}.csr"),
        );
        let own = ["-subj", &subject, "-keyout", &key, "-out", &request];
        self.openssl(&[&["req"], &CURVE[..], &own].concat());
    }

    /// Issues a certificate that is valid for every use. `names` are its alternative names; an
    /// empty text means no alternative names.
    pub fn files(&self, name: &str, names: &str) -> TlsFiles {
        self.files_for(name, names, "")
    }

    /// Issues a certificate that is valid only for the use `usage`.
    pub fn files_for(&self, name: &str, names: &str, usage: &str) -> TlsFiles {
        self.ask(name, names, usage);
        let of = |kind: &str| format!("{name}.{kind}");
        let (request, extensions, out) = (of("csr"), of("ext"), of("pem"));
        self.openssl(&[
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "30",
            "-extfile",
            &extensions,
            "-out",
            &out,
        ]);
        self.named(name)
    }

    /// Issues a certificate that was valid only in January 2020.
    pub fn expired(&self, name: &str, names: &str) -> TlsFiles {
        self.ask(name, names, "");
        for (file, text) in [("ca.cnf", CONFIG), ("index.txt", ""), ("serial", "01\n")] {
            std::fs::write(self.path(file), text).expect("the directory is ours");
        }
        let of = |kind: &str| format!("{name}.{kind}");
        let (request, extensions, out) = (of("csr"), of("ext"), of("pem"));
        self.openssl(&[
            "ca",
            "-batch",
            "-notext",
            "-config",
            "ca.cnf",
            "-cert",
            "ca.pem",
            "-keyfile",
            "ca.key",
            "-startdate",
            "20200101000000Z",
            "-enddate",
            "20200201000000Z",
            "-in",
            &request,
            "-extfile",
            &extensions,
            "-out",
            &out,
        ]);
        self.named(name)
    }

    fn named(&self, name: &str) -> TlsFiles {
        TlsFiles {
            ca: self.path("ca.pem"),
            cert: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
        }
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let path: &Path = &self.0;
        std::fs::remove_dir_all(path).expect("the directory is ours");
    }
}
