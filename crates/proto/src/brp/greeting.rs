//! The first frames of a connection: the initiator's `HELLO`, and the target's answer, which is
//! `WELCOME`, `REFUSED` or a list of exports (section "Greeting").

use super::command::Request;
use super::frame::Outbound;
use super::wire::{
    DATA_BYTES_MAX, ENTRIES_MAX, HELLO_BYTES, HELLO_MAGIC, LISTING_BYTES, MERGED_BYTES_MAX,
    NAME_BYTES_MAX, Op, ProtocolError, RANGE_BYTES_MAX, Status, VERSION, WELCOME_BYTES,
    WORDS_BYTES_MAX, id_at, kind, right, text, u16_at, u32_at, u64_at,
};

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To get a list of the exports.
    List,
    /// To open a path to an export.
    Open,
}

/// The greeting of an initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The lowest version the initiator speaks.
    pub version_min: u16,
    /// The highest version the initiator speaks.
    pub version_max: u16,
    /// See [`feature`](super::wire::feature).
    pub features: u32,
    /// Identifier of the session.
    pub session: [u8; 16],
    /// The number of this connection in the session, from 1.
    pub path: u32,
    /// Purpose of the connection.
    pub purpose: Purpose,
    /// Name of the export; empty for the default one.
    pub name: String,
}

impl Hello {
    /// Appends the encoded frame to `out`.
    ///
    /// # Panics
    /// If the name is longer than [`NAME_BYTES_MAX`].
    pub fn encode(&self, outbound: &mut Outbound, out: &mut Vec<u8>) {
        assert!(self.name.len() <= NAME_BYTES_MAX, "a name fits its limit");
        let mut body = HELLO_MAGIC.to_vec();
        body.extend_from_slice(&self.version_min.to_le_bytes());
        body.extend_from_slice(&self.version_max.to_le_bytes());
        body.extend_from_slice(&self.features.to_le_bytes());
        body.extend_from_slice(&self.session);
        body.extend_from_slice(&self.path.to_le_bytes());
        let purpose: u16 = match self.purpose {
            Purpose::List => 0,
            Purpose::Open => 1,
        };
        body.extend_from_slice(&purpose.to_le_bytes());
        body.extend_from_slice(&(self.name.len() as u16).to_le_bytes());
        body.extend_from_slice(self.name.as_bytes());
        outbound.control(out, kind::HELLO, &body);
    }

    /// Returns true if the `HELLO` in `body` offers only versions above [`VERSION`]. In this case,
    /// the layout of the fields after the version is unknown.
    pub(super) fn is_later(body: &[u8]) -> bool {
        body.len() >= 12 && body[..8] == HELLO_MAGIC && u16_at(body, 8) > VERSION
    }

    pub(super) fn decode(body: &[u8]) -> Result<Hello, ProtocolError> {
        if body.len() < HELLO_BYTES || body[..8] != HELLO_MAGIC {
            return Err(ProtocolError::NotBrp);
        }
        let name_bytes = usize::from(u16_at(body, 38));
        if name_bytes > NAME_BYTES_MAX || body.len() != HELLO_BYTES + name_bytes {
            return Err(ProtocolError::BadLength(body.len() as u32));
        }
        let purpose = match u16_at(body, 36) {
            0 => Purpose::List,
            1 => Purpose::Open,
            _ => return Err(ProtocolError::BadField("purpose")),
        };
        let hello = Hello {
            version_min: u16_at(body, 8),
            version_max: u16_at(body, 10),
            features: u32_at(body, 12),
            session: id_at(body, 16),
            path: u32_at(body, 32),
            purpose,
            name: text(&body[HELLO_BYTES..])?,
        };
        hello.check()?;
        Ok(hello)
    }

    fn check(&self) -> Result<(), ProtocolError> {
        let wrong = if self.version_min > self.version_max || self.version_min == 0 {
            "versions"
        } else if self.session == [0; 16] {
            "session"
        } else if self.path == 0 {
            "path"
        } else if self.purpose == Purpose::List && !self.name.is_empty() {
            "name"
        } else {
            return Ok(());
        };
        Err(ProtocolError::BadField(wrong))
    }
}

/// The target's description of the volume and the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Features that were negotiated for this path.
    pub features: u32,
    /// Random identifier of this instance of the target's process, drawn when the process started.
    pub instance: [u8; 16],
    /// Identifier of the target's machine. It changes when the machine reboots.
    pub host: [u8; 16],
    /// Size of the volume in bytes.
    pub size_bytes: u64,
    /// Alignment of offsets and lengths in bytes.
    pub block_bytes: u32,
    /// Request size that suits the volume best, in bytes.
    pub preferred_bytes: u32,
    /// Maximum length of a read or write in bytes.
    pub transfer_bytes_max: u32,
    /// Maximum length of any other range in bytes.
    pub range_bytes_max: u32,
    /// Maximum number of requests that the target has in progress for a path.
    pub requests_max: u32,
    /// Maximum number of data bytes of the requests that the target has in progress for a path.
    pub data_bytes_max: u32,
    /// See [`right`].
    pub rights: u32,
}

impl Welcome {
    /// Appends the encoded frame to `out`.
    ///
    /// # Panics
    /// If a field is outside its limits.
    pub fn encode(&self, outbound: &mut Outbound, out: &mut Vec<u8>) {
        assert_eq!(self.check(), Ok(()), "a target describes itself properly");
        let mut body = Vec::with_capacity(WELCOME_BYTES);
        body.extend_from_slice(&VERSION.to_le_bytes());
        body.extend_from_slice(&[0; 2]);
        body.extend_from_slice(&self.features.to_le_bytes());
        body.extend_from_slice(&self.instance);
        body.extend_from_slice(&self.host);
        body.extend_from_slice(&self.size_bytes.to_le_bytes());
        for field in [
            self.block_bytes,
            self.preferred_bytes,
            self.transfer_bytes_max,
            self.range_bytes_max,
            self.requests_max,
            self.data_bytes_max,
            self.rights,
            0,
        ] {
            body.extend_from_slice(&field.to_le_bytes());
        }
        outbound.control(out, kind::WELCOME, &body);
    }

    pub(super) fn decode(body: &[u8]) -> Result<Welcome, ProtocolError> {
        if body.len() != WELCOME_BYTES {
            return Err(ProtocolError::BadLength(body.len() as u32));
        }
        if u16_at(body, 0) != VERSION || u16_at(body, 2) != 0 || u32_at(body, 76) != 0 {
            return Err(ProtocolError::BadField("version"));
        }
        let welcome = Welcome {
            features: u32_at(body, 4),
            instance: id_at(body, 8),
            host: id_at(body, 24),
            size_bytes: u64_at(body, 40),
            block_bytes: u32_at(body, 48),
            preferred_bytes: u32_at(body, 52),
            transfer_bytes_max: u32_at(body, 56),
            range_bytes_max: u32_at(body, 60),
            requests_max: u32_at(body, 64),
            data_bytes_max: u32_at(body, 68),
            rights: u32_at(body, 72),
        };
        welcome.check()?;
        Ok(welcome)
    }

    /// Checks the fields against their limits.
    ///
    /// # Errors
    /// [`ProtocolError::BadField`] with the name of the first field outside its limits.
    pub fn check(&self) -> Result<(), ProtocolError> {
        let block = self.block_bytes;
        let wrong = if !block.is_power_of_two() || block > MERGED_BYTES_MAX {
            "block_bytes"
        } else if self.size_bytes == 0
            || self.size_bytes > i64::MAX as u64
            || !self.size_bytes.is_multiple_of(u64::from(block))
        {
            "size_bytes"
        } else if !self.preferred_bytes.is_power_of_two() || self.preferred_bytes < block {
            "preferred_bytes"
        } else if !(MERGED_BYTES_MAX..=DATA_BYTES_MAX).contains(&self.transfer_bytes_max) {
            "transfer_bytes_max"
        } else if !(MERGED_BYTES_MAX..=RANGE_BYTES_MAX).contains(&self.range_bytes_max) {
            "range_bytes_max"
        } else if self.requests_max < ENTRIES_MAX as u32 {
            "requests_max"
        } else if self.data_bytes_max < self.transfer_bytes_max {
            "data_bytes_max"
        } else {
            return Ok(());
        };
        Err(ProtocolError::BadField(wrong))
    }

    /// Returns true when a right or property is set.
    pub fn has(&self, right: u32) -> bool {
        self.rights & right != 0
    }

    /// Returns true when a feature was negotiated.
    pub fn agreed(&self, feature: u32) -> bool {
        self.features & feature != 0
    }

    /// Checks whether a request is allowed to be carried out (section "Commands"). The target
    /// validates each received request, and the initiator validates a request before sending it.
    ///
    /// # Errors
    /// The status with which the request is answered.
    pub fn validate(&self, request: &Request) -> Result<(), Status> {
        if request.op.changes() && self.has(right::READ_ONLY) {
            return Err(Status::ReadOnly);
        }
        let (offset, length) = (request.offset_bytes, u64::from(request.length_bytes));
        if request.op == Op::Flush {
            let empty = offset == 0 && length == 0;
            return if empty { Ok(()) } else { Err(Status::Invalid) };
        }
        if length == 0 {
            return Err(Status::Invalid);
        }
        if offset
            .checked_add(length)
            .is_none_or(|end| end > self.size_bytes)
        {
            return Err(Status::OutOfRange);
        }
        let longest = match request.op {
            Op::Read | Op::Write => self.transfer_bytes_max,
            _ => self.range_bytes_max,
        };
        let aligned = (offset | length).is_multiple_of(u64::from(self.block_bytes));
        if !aligned || request.length_bytes > longest {
            return Err(Status::Invalid);
        }
        Ok(())
    }
}

/// Reason why a target refuses a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum RefusalCode {
    /// No version in common.
    Version = 1,
    /// No such export for this initiator.
    UnknownExport = 2,
    /// Too many connections, sessions or paths.
    Full = 3,
    /// The session already had a path with this number or with a higher number.
    StalePath = 4,
    /// The target is shutting down.
    Shutdown = 5,
}

/// A refusal with a message for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason of the refusal.
    pub code: RefusalCode,
    /// Message for people.
    pub words: String,
}

impl Refusal {
    /// Creates a refusal.
    pub fn new(code: RefusalCode, words: &str) -> Refusal {
        Refusal {
            code,
            words: words.to_owned(),
        }
    }

    /// Appends the encoded frame to `out`. A message that exceeds the maximum length is truncated.
    pub fn encode(&self, outbound: &mut Outbound, out: &mut Vec<u8>) {
        let words = match self.words.char_indices().map(|(at, _)| at) {
            _ if self.words.len() <= WORDS_BYTES_MAX => self.words.as_str(),
            mut starts => {
                let end = starts.rfind(|at| *at <= WORDS_BYTES_MAX).unwrap_or(0);
                &self.words[..end]
            }
        };
        let mut body = (self.code as u16).to_le_bytes().to_vec();
        body.extend_from_slice(&(words.len() as u16).to_le_bytes());
        body.extend_from_slice(words.as_bytes());
        outbound.control(out, kind::REFUSED, &body);
    }

    pub(super) fn decode(body: &[u8]) -> Result<Refusal, ProtocolError> {
        if body.len() < 4
            || body.len() != 4 + usize::from(u16_at(body, 2))
            || body.len() > 4 + WORDS_BYTES_MAX
        {
            return Err(ProtocolError::BadLength(body.len() as u32));
        }
        let code = match u16_at(body, 0) {
            1 => RefusalCode::Version,
            2 => RefusalCode::UnknownExport,
            3 => RefusalCode::Full,
            4 => RefusalCode::StalePath,
            5 => RefusalCode::Shutdown,
            _ => return Err(ProtocolError::BadField("refusal")),
        };
        let words = text(&body[4..])?;
        Ok(Refusal { code, words })
    }
}

/// One export in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Size of the volume.
    pub size_bytes: u64,
    /// See [`right`].
    pub rights: u32,
    /// The name by which clients request the export.
    pub name: String,
    /// Description for people.
    pub description: String,
}

impl Listed {
    /// Appends the encoded frame to `out`.
    ///
    /// # Panics
    /// If the name or the description is longer than [`NAME_BYTES_MAX`].
    pub fn encode(&self, outbound: &mut Outbound, out: &mut Vec<u8>) {
        let (name, words) = (self.name.as_bytes(), self.description.as_bytes());
        assert!(
            name.len() <= NAME_BYTES_MAX && words.len() <= NAME_BYTES_MAX,
            "names fit their limit"
        );
        let mut body = self.size_bytes.to_le_bytes().to_vec();
        body.extend_from_slice(&self.rights.to_le_bytes());
        body.extend_from_slice(&(name.len() as u16).to_le_bytes());
        body.extend_from_slice(&(words.len() as u16).to_le_bytes());
        body.extend_from_slice(name);
        body.extend_from_slice(words);
        outbound.control(out, kind::LISTING, &body);
    }

    /// Appends the frame that ends a list.
    pub fn end(outbound: &mut Outbound, out: &mut Vec<u8>) {
        outbound.control(out, kind::LISTING, &[]);
    }

    /// Decodes the description of an export; returns `None` for the end of the list.
    pub(super) fn decode(body: &[u8]) -> Result<Option<Listed>, ProtocolError> {
        if body.is_empty() {
            return Ok(None);
        }
        let bad = ProtocolError::BadLength(body.len() as u32);
        if body.len() < LISTING_BYTES {
            return Err(bad);
        }
        let name_bytes = usize::from(u16_at(body, 12));
        let words_bytes = usize::from(u16_at(body, 14));
        let fit = name_bytes <= NAME_BYTES_MAX && words_bytes <= NAME_BYTES_MAX;
        if !fit || body.len() != LISTING_BYTES + name_bytes + words_bytes {
            return Err(bad);
        }
        let (name, words) = body[LISTING_BYTES..].split_at(name_bytes);
        Ok(Some(Listed {
            size_bytes: u64_at(body, 0),
            rights: u32_at(body, 8),
            name: text(name)?,
            description: text(words)?,
        }))
    }
}
