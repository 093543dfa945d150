//! The BRP greeting: determines the export, the session and the path of an initiator that connects,
//! or the reason why the initiator is refused.

use std::rc::Rc;

use bimetal_block::Geometry;
use bimetal_proto::brp::greeting::RefusalCode;
use bimetal_proto::brp::inbound::ToTarget;
use bimetal_proto::brp::wire::{
    DATA_BYTES_MAX, NAME_BYTES_MAX, RANGE_BYTES_MAX, VERSION, feature, right,
};
use bimetal_proto::brp::{Hello, Listed, Outbound, Purpose, Refusal, TargetInbound, Welcome};
use bimetal_rt::Rt;
use bimetal_rt::net::{Inbox, Stream};

use super::target::{OpenPath, Target};
use crate::config::Persistence;
use crate::export::{Connected, Shown};
use crate::input::{End, HANDSHAKE_BUFFER_BYTES};
use crate::session::BOUNDS;

/// An initiator that was accepted.
pub(crate) struct Taken {
    pub(crate) export: Connected,
    pub(crate) path: OpenPath,
    pub(crate) welcome: Welcome,
    pub(crate) inbound: TargetInbound,
    pub(crate) outbound: Outbound,
    /// Bytes that were received behind the greeting.
    pub(crate) early: Vec<u8>,
}

/// Performs the greeting with an initiator. Returns `None` if the initiator is refused, only lists
/// the exports, or closes the connection.
///
/// # Errors
/// The reason why the connection has to end.
pub(crate) async fn greet(
    rt: &Rt,
    stream: &Stream,
    target: &Rc<Target>,
    exports: &[Shown],
) -> Result<Option<Taken>, End> {
    let greeting = Greeting {
        rt,
        stream,
        target,
        exports,
    };
    greeting.answer().await
}

struct Greeting<'a> {
    rt: &'a Rt,
    stream: &'a Stream,
    target: &'a Rc<Target>,
    exports: &'a [Shown],
}

impl Greeting<'_> {
    async fn answer(&self) -> Result<Option<Taken>, End> {
        let mut input = Inbox::new(self.rt.pool().alloc_now(HANDSHAKE_BUFFER_BYTES));
        let (mut inbound, mut outbound) = (TargetInbound::new(), Outbound::new());
        let (message, taken) = loop {
            match inbound.next(input.unread(), &mut Vec::new())? {
                Some(message) => break message,
                None if input.receive(self.stream).await? => {}
                None => return Ok(None),
            }
        };
        input.consume(taken);
        let mut out = Vec::new();
        let hello = match message {
            ToTarget::Hello(hello) if hello.version_min <= VERSION => hello,
            _ => {
                let words = "this target speaks version 1";
                return self
                    .refuse(&mut outbound, Refusal::new(RefusalCode::Version, words))
                    .await;
            }
        };
        if hello.purpose == Purpose::List {
            return self.list(&mut outbound).await;
        }
        // The connection holds its slot and its path while the welcome is sent, because sending can
        // take long or never complete.
        let (shown, export, path) = match self.open(&hello) {
            Ok(opened) => opened,
            Err(refusal) => return self.refuse(&mut outbound, refusal).await,
        };
        let welcome = self.welcome(shown, &hello)?;
        welcome.encode(&mut outbound, &mut out);
        self.send(&out).await?;
        inbound.open(welcome.features);
        outbound.open(welcome.features);
        Ok(Some(Taken {
            export,
            path,
            welcome,
            inbound,
            outbound,
            early: input.unread().to_vec(),
        }))
    }

    async fn send(&self, out: &[u8]) -> Result<(), End> {
        self.stream.send(self.rt.pool().copy_of(out).into()).await?;
        Ok(())
    }

    async fn refuse(
        &self,
        outbound: &mut Outbound,
        refusal: Refusal,
    ) -> Result<Option<Taken>, End> {
        let mut out = Vec::new();
        refusal.encode(outbound, &mut out);
        self.send(&out).await?;
        Ok(None)
    }

    async fn list(&self, outbound: &mut Outbound) -> Result<Option<Taken>, End> {
        let mut out = Vec::new();
        for shown in self.exports {
            let export = &shown.export;
            let listed = Listed {
                size_bytes: export.device.geometry().size_bytes,
                rights: rights(shown),
                name: export.config.name.clone(),
                description: export.config.description.clone(),
            };
            listed.encode(outbound, &mut out);
            // Entries are sent one at a time, so the list never needs more memory than its longest
            // entry.
            self.send(&out).await?;
            out.clear();
        }
        Listed::end(outbound, &mut out);
        self.send(&out).await?;
        Ok(None)
    }

    fn open(&self, hello: &Hello) -> Result<(&Shown, Connected, OpenPath), Refusal> {
        assert!(
            hello.name.len() <= NAME_BYTES_MAX,
            "the codec bounds a name"
        );
        let mut exports = self.exports.iter();
        let is_it = |s: &&Shown| hello.name.is_empty() || s.export.config.name == hello.name;
        let shown = exports.find(is_it).ok_or_else(|| {
            Refusal::new(
                RefusalCode::UnknownExport,
                "there is no export with this name",
            )
        })?;
        let connected = shown.export.connect().ok_or_else(|| {
            let words = "the export has reached its maximum of connections";
            Refusal::new(RefusalCode::Full, words)
        })?;
        let path = self.target.open(hello.session, hello.path)?;
        Ok((shown, connected, path))
    }

    fn welcome(&self, shown: &Shown, hello: &Hello) -> Result<Welcome, End> {
        let identity = self.target.identity()?;
        let geometry = shown.export.device.geometry();
        Ok(Welcome {
            features: hello.features & feature::ALL,
            instance: identity.instance,
            host: identity.host,
            size_bytes: geometry.size_bytes,
            // `AtomicUnit`, the layer between the server and the device, accepts requests of any
            // length.
            block_bytes: 1,
            preferred_bytes: geometry.preferred_bytes,
            transfer_bytes_max: transfer_bytes_max(geometry),
            range_bytes_max: RANGE_BYTES_MAX,
            requests_max: BOUNDS.requests,
            data_bytes_max: BOUNDS.bytes as u32,
            rights: rights(shown),
        })
    }
}

fn transfer_bytes_max(geometry: &Geometry) -> u32 {
    geometry.transfer_bytes_max.min(DATA_BYTES_MAX)
}

fn rights(shown: &Shown) -> u32 {
    let geometry = shown.export.device.geometry();
    let mut rights = match shown.export.config.persistence {
        Persistence::Durable => 0,
        Persistence::Volatile => right::VOLATILE,
        Persistence::Ephemeral => right::VOLATILE | right::EPHEMERAL,
    };
    for (holds, bit) in [
        (shown.read_only, right::READ_ONLY),
        (geometry.rotational, right::ROTATIONAL),
        (geometry.discard_zeroes, right::DISCARD_ZEROES),
    ] {
        rights |= if holds { bit } else { 0 };
    }
    rights
}
